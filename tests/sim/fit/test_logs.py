"""A start-up log: what it says is taken by fit and replay, what it does not say is the release's default."""

import gzip
from dataclasses import replace

import pytest
from support.shared_data import shared

import kvsim
from kvsim.sim.bench.read import read_result
from kvsim.sim.bench.server import server_of
from kvsim.sim.build import resolve
from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.answer import fit, fitted
from kvsim.sim.fit.asked import FitOptions
from kvsim.sim.fit.log import read_log
from kvsim.sim.fit.log_terms import as_logged, explain, settings_in
from kvsim.sim.fit.what_if import what_ifs
from kvsim.sim.models.catalog import model_named
from kvsim.sim.options.scenario import Scenario

LOG = """\
(EngineCore pid=9) INFO core.py:140] Initializing a V1 LLM engine (v0.33.0) with config: model='m', \
max_seq_len=32768, tensor_parallel_size=1, kv_cache_dtype=auto, enable_prefix_caching=True, \
enforce_eager=False
INFO model_runner.py:429] Model loading took 13.51 GiB memory and 3.100000 seconds
INFO gpu_worker.py:773] Available KV cache memory: 40.0 GiB
INFO kv_cache_utils.py:1157] GPU KV cache size: {tokens} tokens, \
Maximum concurrency for 32,768 tokens per request: 1x
"""


@pytest.mark.parametrize(
    ("tokens", "about"),
    [
        ("523,878", "rounding of the log's GiB"),
        ("872,677", "as if scheduling is not asynchronous"),
        ("1,308,164", "as if the token budget is 2,048"),
        ("1,047,756", "as if the cache is fp8"),
        ("99,999", "not explained by one setting"),
    ],
)
def test_a_log_is_explained_by_the_term_that_makes_the_difference(tmp_path, tokens, about):
    path = tmp_path / "start.log"
    path.write_text(LOG.replace("{tokens}", tokens))
    log = read_log(path)
    base = fit("mistral-7b", "h100")
    terms = explain(log, replace(base, options=settings_in(log, base.model, base.options)))
    (size,) = [term for term in terms if term.name.startswith("size of the same memory")]
    assert size.name == f"size of the same memory: {about}"
    assert {term.name for term in terms} >= {"weights", "activations, graphs, runtime"}


def test_a_file_that_is_no_start_up_log_is_refused(tmp_path):
    (tmp_path / "x").write_text("hello")
    with pytest.raises(KvsimError, match="holds no line of a vLLM start-up"):
        read_log(tmp_path / "x")


# -- a genuine server -----------------------------------------------------------------------------------

LIVE = {  # block ids, tokens of a block, tokens of a step, seats, prefix cache
    "big": (682, 128, 2048, 128, True),
    "small": (128, 32, 512, 64, False),
    "smallpc": (160, 32, 512, 64, True),
    "comp": (682, 128, 2048, 12, True),
    "wi256": (256, 32, 512, 64, False),
}


def live(name):
    return shared("data/live") / name


def device():
    return str(live("profiles/two-cpu-cores.toml"))


@pytest.mark.golden
@pytest.mark.parametrize("name", LIVE)
def test_a_genuine_log_is_understood_by_fit_and_by_replay(name):
    log = read_log(live(f"logs/{name}.server.log.gz"))
    blocks, block_size, budget, seats, prefixes = LIVE[name]
    assert (log.release, log.device, log.kv_given_gib) == ("0.32.0", "cpu", 1.0)
    model = model_named(str(live("model")))
    gpu = fit(model, device()).gpu
    asked = settings_in(log, model, FitOptions())
    assert (asked.engine, asked.async_scheduling) == ("vllm-v1@0.32.0", False)
    answer = as_logged(log, fitted(model, gpu, asked))
    engine = answer.engine
    assert (engine.max_num_batched_tokens, engine.max_num_seqs) == (budget, seats)
    assert (answer.capacity.num_blocks, answer.paged.block_size) == (blocks, block_size)
    assert (answer.capacity.kv_tokens, engine.enable_prefix_caching) == (log.kv_tokens, prefixes)


@pytest.mark.golden
@pytest.mark.parametrize("name", LIVE)
def test_replay_takes_the_blocks_of_a_genuine_log_but_the_null_block(name, tmp_path):
    blocks, block_size, budget, seats, prefixes = LIVE[name]
    found = replayed_server(tmp_path, name)
    chosen = found.scenario
    assert (chosen.num_gpu_blocks, chosen.block_size, chosen.kv_tokens) == (blocks - 1, block_size, None)
    assert (chosen.max_num_batched_tokens, chosen.max_num_seqs) == (budget, seats)
    assert (chosen.enable_prefix_caching, chosen.async_scheduling) == (prefixes, False)
    assert f"Of {blocks} blocks one is vLLM's null block." in found.told


def replayed_server(tmp_path, name, **options):
    run = tmp_path / "run.json"
    run.write_bytes(gzip.decompress(live("vllm/small-c24.json.gz").read_bytes()))
    asked = Scenario(model=str(live("model")), gpu=device(), **options)
    return server_of(asked, read_result(run), read_log(live(f"logs/{name}.server.log.gz")))


@pytest.mark.golden
def test_eager_servers_are_replayed_where_no_cost_knows_launches_and_may_be_undone(tmp_path):
    found = replayed_server(tmp_path, "small")
    assert found.scenario.enforce_eager is None
    assert any("enforce_eager is left out: cost roofline knows no launches" in line for line in found.told)
    told = replayed_server(tmp_path, "small", enforce_eager=False)
    assert told.scenario.enforce_eager is False and not any("left out" in line for line in told.told)
    with pytest.raises(KvsimError, match="enforce_eager must be left out"):  # who asks for it is told
        resolve(replayed_server(tmp_path, "small", enforce_eager=True).scenario.deployed())


@pytest.mark.golden
def test_a_saturated_server_is_met_once_the_log_is_read(tmp_path):
    run = tmp_path / "run.json"
    run.write_bytes(gzip.decompress(live("vllm/small-c24.json.gz").read_bytes()))
    log = live("logs/small.server.log.gz")
    server = {"host_time": "11.61+522.5", "frontend_latency": 0.015}
    replay = kvsim.replay(run, model=str(live("model")), gpu=device(), log=log, **server)
    rate = replay.table.set_index("what").loc["requests"]
    assert abs(rate["off"]) < 0.06  # +22 % where scheduling was taken to be asynchronous
    engine = replay.found.summary["engine"]
    assert abs(engine["preemptions_recompute"] - 67) <= 7


def test_what_if_starts_from_the_memory_of_the_log(tmp_path):
    path = tmp_path / "start.log"
    path.write_text(LOG.replace("{tokens}", "523,878"))
    log, base = read_log(path), fit("mistral-7b", "h100")
    answer = as_logged(log, base)
    assert answer.capacity.kv_tokens == 523_878 and answer.capacity.num_blocks == 20_480
    found = {each.name: each.fit for each in what_ifs(answer)}
    assert found["fp8 cache"].capacity.num_blocks == 40_960
    grown = found["fp8 weights"].kv_memory_bytes - answer.kv_memory_bytes
    plain = {each.name: each.fit for each in what_ifs(base)}["fp8 weights"]
    assert grown == plain.kv_memory_bytes - base.kv_memory_bytes > 0


FLAGS = """\
non-default args: {'model': 'm', 'block_size': 32, 'gpu_memory_utilization': 0.8, 'max_num_seqs': 64, \
'max_num_batched_tokens': 4096, 'enable_expert_parallel': True}
Initializing a V1 LLM engine (v0.11.2rc1.dev3) with config: model='m', max_seq_len=4096, \
tensor_parallel_size=2, pipeline_parallel_size=2, data_parallel_size=1, quantization=fp8, \
enforce_eager=True, kv_cache_dtype=fp8, device_config=cuda, enable_prefix_caching=False, \
enable_chunked_prefill=True
Model loading took 3.6 GiB and 1.0 seconds
{size}
"""


def test_fit_takes_the_flags_of_the_log_unless_its_user_says_otherwise(tmp_path):
    path = tmp_path / "start.log"
    path.write_text(FLAGS.replace("{size}", "Available KV cache memory: 50.00 GiB"))
    model = model_named("llama-3.1-8b")
    asked = settings_in(read_log(path), model, FitOptions(max_num_seqs=8))
    assert (asked.engine, asked.gpu_memory_utilization, asked.max_num_seqs) == ("vllm-v1@0.11.2", 0.8, 8)
    assert (asked.max_num_batched_tokens, asked.block_size, asked.enforce_eager) == (4096, 32, True)
    assert (asked.tensor_parallel_size, asked.pipeline_parallel_size) == (2, 2)
    assert (asked.kv_cache_dtype, asked.enable_prefix_caching) == ("fp8", False)
    found = as_logged(read_log(path), fitted(model, fit(model, "h100").gpu, asked))
    assert found.kv_memory_bytes == 50 * 2**30 and found.engine.gpu_memory_utilization == 0.8


@pytest.mark.parametrize("device", ["GPU", "CPU", "XPU", "TPU", "GPU + host"])
def test_the_size_is_read_whatever_device_printed_it(tmp_path, device):
    path = tmp_path / "start.log"
    path.write_text(
        f"{device} KV cache size: 87,296 tokens, Maximum concurrency for 2,048 tokens per request: 1x"
    )
    assert read_log(path).kv_tokens == 87_296


def test_a_start_that_was_refused_is_no_room_here_too(tmp_path):
    path = tmp_path / "start.log"
    path.write_text(FLAGS.replace("{size}", "Available KV cache memory: -2.14 GiB"))
    answer = as_logged(read_log(path), fit("llama-3.1-8b", "h100"))
    assert answer.capacity.num_blocks == 0 and "no memory is left" in answer.capacity.refusal


def test_a_release_that_is_newer_than_what_is_known_is_read_as_the_newest(tmp_path):
    path = tmp_path / "start.log"
    path.write_text(LOG.replace("v0.33.0", "v0.99.0").replace("{tokens}", "523,878"))
    asked = settings_in(read_log(path), model_named("mistral-7b"), FitOptions())
    assert asked.engine == "vllm-v1@0.33.0"
