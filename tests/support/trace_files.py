"""A small trace file in every format: texts, and table columns besides prompt and output lengths."""

import json

TURN = [{"from": "human", "value": "hi there, you"}, {"from": "gpt", "value": "hello"}]
CHATS = [{"id": "a_0", "conversations": TURN * 2}, {"id": "a_3", "conversations": TURN[1:] + TURN}]
HASHED = {"timestamp": 1500, "input_length": 700, "output_length": 9, "hash_ids": [3, 4]}
BAILIAN = HASHED | {"chat_id": 2, "parent_chat_id": 1, "type": "text", "turn": 2}
CALL = {"t": 1.5, "type": "n", "in": 130, "out": 9, "hash_ids": [0, -1], "think_time": 0.5}
SUBAGENT = {"t": 3.0, "type": "subagent", "agent_id": "a", "duration_ms": 9, "requests": [CALL]}
SESSION = {"id": "s", "block_size": 64, "requests": [CALL, SUBAGENT, CALL | {"t": 9.0}]}
TOKENS = {"gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3}
SPAN = {"start_time": "2026-02-03T10:00:00Z", "attributes": TOKENS}
OTLP = [{"key": name, "value": {"intValue": str(count)}} for name, count in TOKENS.items()]
SPANS = [{"traceId": "t", "startTimeUnixNano": "1700000000000000000", "attributes": OTLP}]
RESULT = {"completed": 2, "request_throughput": 1.0, "request_rate": "inf", "max_concurrency": 2}
RESULT |= {"input_lens": [7, 8], "output_lens": [3, 2], "ttfts": [0.1, 0.2], "itls": [[0.1, 0.1], [0.1]]}
RESULT |= {"start_times": [0.0, 0.5], "errors": ["", ""]}
NATIVE = {"arrival_s": 0.5, "output_tokens": 4, "segments": [["a", 9]], "session": "s", "n": 2}

TEXTS = {
    "Azure": "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n",
    "Azure 2024": "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00.001163+00:00,1452,3\n"
    "2024-05-12 00:00:01+00:00,584,3\n",
    "BurstGPT": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,x\n",
    "BurstGPT 2": "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,"
    'Total tokens,Log Type\n19440110.0,17-a,43,"GPT-4",906,446,1352,Conversation log\n',
    "Vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,7,8\n1.25,9,10\n",
    "Splitwise": "request_id,request_type,application_id,arrival_timestamp,batch_size,"
    "prompt_size,token_size\n0,2,0,0.75,1,374,44\n",
    "Mooncake": f"{json.dumps(HASHED)}\n" * 2,
    "Bailian": f"{json.dumps(BAILIAN)}\n" * 2,
    "Weka": f"{json.dumps(SESSION)}\n" * 2,
    "OpenTelemetry": json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": SPANS}]}]}),
    "OpenTelemetry spans": f"{json.dumps(SPAN)}\n" * 2,
    "ShareGPT": json.dumps(CHATS),
    "benchmark result": json.dumps(RESULT),
    "kvsim": f"{json.dumps(NATIVE)}\n" * 2,
    "kvsim in CSV": "timestamp_ms,isl,osl,session,model\n0.5,374,44,a,x\n1000,396,109,,x\n",
}
TABLES = {
    "hash ids": {"arrival_s": [0.0, 1.0], "hash_ids": [[1, 2], [1, 3]], "client": ["a", "b"]},
    "conversations": {"conversation_id": ["a", "a"], "turn": [0, 1]},
    "kvsim in parquet": {"arrival_s": [0.5, 1.5], "session": ["a", None]},
}
