"""Measure a GPU and fit the numbers that a simulator needs: the measuring half of `sim calibrate`.

    from kvsim.kernels.calibration.plan import plan                    # imports torch only when called
    from kvsim.kernels.calibration.calibrate import Progress, calibrate
    from kvsim.kernels.calibration.profile import write_profile

    planned = plan(quick=False, interpret=False)                 # parts, points, estimated_s(), device
    profile = calibrate(planned, journal, progress=print)        # resumes the journal; Ctrl-C keeps it
    write_profile(profile, path, journal)                        # also removes the journal

The same from a shell, without the rest of kvsim: `python -m kvsim.kernels.calibration --out PROFILE`.

    profile.py     the resulting file, described field by field; writing it
    form.py        the fitted forms: bytes and work of each part, tables of ratios
    points.py      a point: its launch, the bytes it moves, the launches of a composed step
    grid.py        which points, which of them are held out        sizes.py  the numbers, in full, quick, toys
    plan.py        all points for one device, and how long they take
    device.py      the device and its versions
    card.py        what nvidia-smi reports about the card, and why it is slowed
    drift.py       the same two launches before every part: whether the card stays as fast
    timing.py      CUDA graphs, turns, medians, datasheets: shared with benchmarks/kernels.py
    room.py        one slab of random memory, sliced for every launch
    launches.py    the launches of each part                       layer.py  small kernels of a layer
    steps.py       whole layers                                    all_reduce.py  sums over GPUs
    bench.py       points in, seconds out
    journal.py     the measurements so far, to be resumed        stopping.py  SIGTERM as Ctrl-C
    overview.py    what will be measured and what is left out     earlier.py   an existing profile
    soundness.py   is it enough for a profile, can it be trusted
    fit.py         forms, tables and errors                        assemble.py  all of them, as a profile
    calibrate.py   everything together
    errors.py      what can go wrong
"""
