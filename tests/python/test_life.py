"""Opening and closing, threads, processes, signals."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import openpi_c
from openpi_c import _openpi


def test_closed_policy(none):
    policy, obs = none
    request = policy.request()
    policy.close()
    policy.close()
    assert policy.closed and policy.engine.closed
    with pytest.raises(ValueError, match="the policy is closed"):
        policy.infer(obs)
    with pytest.raises(ValueError, match="the engine is closed"):
        policy.engine.session()
    with pytest.raises(ValueError, match="the policy is closed"):
        policy.request()
    request.prepare(obs)  # an open request keeps what it needs
    request.close()


def test_any_order_of_closing(none):
    policy, obs = none
    session = policy.engine.session(horizon=4, steps=2)
    request = policy.request()
    policy.engine.close()
    policy.engine.close()
    assert policy.infer(obs)["actions"].shape == (4, 32)  # its session keeps the weights
    request.prepare(obs)
    assert session.run([request.sample()]).shape == (1, 4, 32)
    del policy, request
    gc.collect()
    session.close()
    session.close()


def test_garbage_collection():
    policy = openpi_c.Policy(synthetic="odd:pi0:7", robot="none", steps=1, horizon=4)
    seen = weakref.ref(policy)
    policy.myself = policy  # a cycle
    del policy
    gc.collect()
    assert seen() is None


def test_opening_twice_is_refused(none):
    policy, _ = none
    for handle, arguments in (
        (policy.engine._handle, {"synthetic": "odd"}),
        (policy._transform, {"synthetic": "odd", "robot": "none"}),
    ):
        with pytest.raises(ValueError, match="opened once already"):
            handle.__init__(**arguments)


def test_many_threads_share_a_policy(droid):
    policy, obs, noise, actions = droid
    wrong = []

    def work():
        for _ in range(6):
            if not (policy.infer(obs, noise=noise)["actions"] == actions).all():
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert policy._lanes._made == 2  # sessions=2: more are never made


def test_close_while_others_call():
    policy = openpi_c.Policy(synthetic="odd:pi0:7", robot="none", steps=2, horizon=4, sessions=2)
    obs = {"base": np.zeros((64, 64, 3), np.uint8), "state": [0.0], "prompt": "go"}
    ends = []

    def work():
        try:
            while True:
                policy.infer(obs)
        except ValueError as error:
            ends.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    policy.close()
    for thread in threads:
        thread.join()
    assert ends == ["the policy is closed"] * 6


def test_close_while_a_lane_is_made(none):
    policy, _ = none
    lanes = policy._lanes
    lanes._limit += 1
    make = lanes._make

    def late():
        policy.close()
        return make()

    lanes._make = late
    with pytest.raises(ValueError, match="the policy is closed"):
        lanes.await_lane()


def test_two_threads_on_one_session():
    """While one thread runs a session, another is refused, whatever it asks; the running call is not disturbed."""
    with openpi_c.Policy(synthetic="tiny:pi0:7", robot="none", steps=100, horizon=50) as policy:
        request = policy.request()
        request.prepare({"base": np.zeros((64, 64, 3), np.uint8), "state": [0.0], "prompt": "go"})
        sample = request.sample()
        assert any(all_refused(policy.engine, sample) for _ in range(30))


def all_refused(engine, sample):
    """False where the other thread's call ended before everything was asked."""
    session, answers = engine.session(steps=100, horizon=50), []
    thread = threading.Thread(target=lambda: answers.append(session.run([sample])))
    thread.start()
    while thread.is_alive() and not is_refused(lambda: session.info):
        pass
    refused = [is_refused(call) for call in (session.close, lambda: session.run([sample]))]
    thread.join()
    assert answers[0].shape == (1, 50, 32)
    return all(refused)


def is_refused(call):
    try:
        call()
    except openpi_c.Error as error:
        assert "in use by another call" in str(error)
        return True
    except ValueError as error:
        assert "closed" in str(error)
    return False


@pytest.mark.parametrize("level", ["policy", "model"])
def test_the_interpreter_runs_on(level):
    """While a call computes, another thread executes Python: the call has released the GIL."""
    policy = openpi_c.Policy(synthetic="tiny:pi0:7", robot="none", steps=25, horizon=50, threads=1)
    obs = {"base": np.zeros((64, 64, 3), np.uint8), "state": [0.0], "prompt": "go"}
    session = policy.engine.session(steps=25, horizon=50)
    done, seen = threading.Event(), []

    def work():
        for _ in range(3):
            if level == "policy":
                policy.infer(obs)
            else:
                session.run([sample_of(obs)])
        done.set()

    thread = threading.Thread(target=work)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is made to let the GIL go
    try:
        thread.start()
        while not done.is_set():
            seen.append(1)
            time.sleep(0)
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    policy.close()
    assert len(seen) > 100


def test_fork_is_refused_with_a_sentence(none):
    policy, obs = none
    session = policy.engine.session(horizon=4, steps=2)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        sentences = []
        for call in (lambda: policy.infer(obs), lambda: policy.engine.session(), lambda: session.run([sample_of(obs)])):
            try:
                call()
                sentences.append("no exception")
            except openpi_c.Error as error:
                sentences.append(str(error))
        with openpi_c.Policy(synthetic="odd:pi0:7", robot="none", steps=1, horizon=4) as own:
            sentences.append(str(own.infer(obs)["actions"].shape))
        policy.close()
        os.write(write, "\n".join(sentences).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        sentences = answers.read().split("\n")
    os.waitpid(child, 0)
    assert len(sentences) == 4 and sentences[3] == "(4, 32)"
    assert all("forked from it" in sentence for sentence in sentences[:3]), sentences
    assert policy.infer(obs)["actions"].shape == (4, 32)


def sample_of(obs):
    return openpi_c.Sample([np.zeros((224, 224, 3), np.uint8), None, None], [2], np.zeros(32))


def test_progress(capfd):
    calls = []
    with openpi_c.Engine(synthetic="tiny", progress=lambda *report: calls.append(report)):
        pass
    assert calls and all(what == "packing weights" and 0 < done <= total for what, done, total in calls)
    assert calls[-1][1] == calls[-1][2]
    for progress in ("auto", None):
        openpi_c.Engine(synthetic="odd", progress=progress).close()
    assert capfd.readouterr() == ("", "")  # no terminal: nothing


def test_bar_on_a_terminal():
    from openpi_c.progress import Bar

    class Terminal:
        def __init__(self):
            self.text = ""

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    quick, slow = Terminal(), Terminal()
    bar = Bar(quick)
    bar("packing weights", 1, 2)
    bar.close()
    assert quick.text == ""  # loads that are soon done draw nothing
    bar = Bar(slow)
    bar._next = 0
    bar("packing weights", 1, 2)
    bar("packing weights", 2, 2)
    bar.close()
    assert slow.text.startswith("\rpacking weights  50% |" + 15 * "#") and slow.text.count("packing") == 1
    assert slow.text.endswith("\r")


def test_progress_that_raises():
    calls = []

    def progress(what, done, total):
        calls.append(done)
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        openpi_c.Policy(synthetic="tiny", robot="none", progress=progress)
    assert len(calls) == 1  # loading stopped there


def test_interrupt_while_loading():
    """Ctrl-C while a large model loads: KeyboardInterrupt, long before it would be loaded."""
    program = (
        "import openpi_c, os, signal, sys\n"
        "calls = []\n"
        "def progress(what, done, total):\n"
        "    calls.append(done)\n"
        "    if len(calls) == 2: os.kill(os.getpid(), signal.SIGINT)\n"
        "try: openpi_c.Engine(synthetic='tiny', progress=progress)\n"
        "except KeyboardInterrupt: sys.exit(40 + len(calls))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program])
    assert ended.returncode in (42, 43)


def test_interrupt_without_a_progress_function():
    """A signal that arrives while the engine packs weights, where no Python runs: the load is cancelled."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        assert any(cancelled_by_alarm(0.002 * (1 + i % 30)) for i in range(300))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def cancelled_by_alarm(seconds):
    """True: the alarm came during the load, so that nothing is open; not before it, not after it."""
    engine = _openpi.Engine.__new__(_openpi.Engine)
    with pytest.raises(KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        engine.__init__(synthetic="tiny")
        time.sleep(60)
    if not engine.closed:
        return False
    try:
        engine.__init__(synthetic="odd")
    except ValueError as error:
        return "opened once already" in str(error)
    return False


def test_lanes_are_given_back(none):
    """Whether a call gives actions or an exception, its session is free for the next."""
    policy, obs = none
    lanes = policy._lanes
    policy.infer(obs)
    (lane,) = lanes.lanes
    for bad in (3, {**obs, "prompt": None}):
        with pytest.raises((TypeError, ValueError)):
            policy.infer(bad)
        assert lanes.lanes == [lane] and not lane.busy
    with pytest.raises(ValueError, match="66 observations"):
        _openpi.infer([lane], (obs,) * 66, None, 0, 0, None)
    with pytest.raises(TypeError):
        _openpi.infer([lane], (3,), None, 0, 0, None)
    assert policy.infer(obs)["actions"].shape == (4, 32)


def test_a_lane_that_cannot_be_made():
    """A session that does not fit takes no place among those that may be open."""
    policy = openpi_c.Policy(synthetic="odd:pi0:7", robot="none", steps=1, horizon=4, sessions=2)
    obs = {"base": np.zeros((64, 64, 3), np.uint8), "state": [0.0], "prompt": "go"}
    lanes, make = policy._lanes, policy._lanes._make
    first = lanes.lanes.pop()  # as if another call ran in it

    def fails():
        raise MemoryError("no space")

    lanes._make = fails
    for _ in range(3):
        with pytest.raises(MemoryError):
            policy.infer(obs)
        assert lanes._made == 1
    lanes._make = make
    assert policy.infer(obs)["actions"].shape == (4, 32) and lanes._made == 2
    first.close()
    policy.close()


def test_wrong_lanes_in_the_extension(none):
    """The extension runs in nothing but a session and open requests of one policy."""
    policy, obs = none
    (lane,) = policy._lanes.lanes
    session, request = lane.handle, lane.requests[0]
    other = openpi_c.Policy(synthetic="odd:pi0:7", robot="none", steps=1, horizon=3)
    foreign = other._lanes.lanes[0].requests[0]
    infer = lambda lanes, count=1: _openpi.infer(lanes, (obs,) * count, None, 0, 0, None)

    class Liar:
        __class__ = _openpi.Session

    for lanes, count, kind, sentence in (
        ((lane,), 1, TypeError, "infer takes a list of lanes"),
        ([3], 1, TypeError, "a lane is not a tuple"),
        ([(session,)], 1, TypeError, "a lane is not a tuple"),
        ([(Liar(), (request,))], 1, TypeError, "a lane is not a tuple"),
        ([(session, [request])], 1, TypeError, "a lane is not a tuple"),
        ([(session, (session,))], 1, TypeError, "a lane is not a tuple"),
        ([(session, ())], 1, ValueError, "a lane has 0 requests, expected one for each of 1 observations"),
        ([(session, (request, request))], 2, ValueError, "requests 0 and 1 are one"),
        ([(session, (request, foreign))], 2, ValueError, "request 1 is of another policy"),
    ):
        with pytest.raises(kind, match=sentence):
            infer(lanes, count)
    assert infer([]) is None  # no lane is free
    assert infer([(session, (request,), "anything")])[0]["actions"].shape == (4, 32)
    closed = policy.engine.session(horizon=4, steps=1)
    closed.close()
    with pytest.raises(ValueError, match="the session is closed"):
        infer([(closed._handle, (request,))])
    other.close()


def test_nothing_is_kept():
    """After a call nothing of what it was given is held, and no object of its own is left."""
    with openpi_c.Policy(synthetic="odd:pi0:7", robot="none", steps=1, horizon=4, rtc=True) as policy:
        obs = {"base": np.full((20, 30, 3), 7, np.uint8), "state": np.zeros(2), "prompt": "".join(["pick", " it", " up"])}
        noise, previous = openpi_c.noise((1, 4, 32)), np.zeros((2, 32))
        request = policy.request()
        request.prepare(obs)
        sample = request.sample()
        session = policy.engine.session(steps=1, horizon=4, rtc=True)
        given = [*obs.values(), obs, noise, previous, *(part for part in sample.parts() if part is not None)]

        def work():
            policy.infer(obs, noise=noise, previous=previous, rtc={"delay": 1})
            for bad in ({**obs, "state": b""}, {**obs, "state": [1, "y"]}, {**obs, "left_wrist": np.zeros(5)}):
                with pytest.raises((TypeError, ValueError)):
                    policy.infer(bad, noise=noise, previous=previous)
            request.previous(request.keep(np.zeros((4, 32))), 1)
            request.finish(np.zeros((4, 32)))
            session.run([sample], noise)
            session.run_rtc([sample], [np.zeros((2, 32), np.float32)], {"delay": 1}, noise)
            assert policy.engine.info and session.info and policy.metadata

        for _ in range(30):
            work()
        gc.collect()
        counts, blocks = [sys.getrefcount(item) for item in given], sys.getallocatedblocks()
        for _ in range(400):
            work()
        gc.collect()
        assert [sys.getrefcount(item) for item in given] == counts
        grown = sys.getallocatedblocks() - blocks
        assert grown < 300, grown  # what is left at each call would be 400 and more


def test_no_leak(droid):
    """Calls, exceptions, batches: resident memory and Python's own stay where they are."""
    import tracemalloc

    policy, obs, noise, _ = droid

    def work(times):
        for _ in range(times):
            policy.infer_batch([obs, obs], noise=np.stack([noise, noise]))
            for bad in ({**obs, "prompt": 3}, {**obs, "prompt": None}, {**obs, "prompt": [1, "y"]}, 3):
                with pytest.raises((TypeError, ValueError)):
                    policy.infer(bad)
            request = policy.request()
            request.prepare(obs)
            request.sample()

    work(10)
    gc.collect()
    tracemalloc.start()
    work(3)
    gc.collect()
    for _ in range(3):  # a leak grows each time; the allocator's own memory does not
        before, rss = tracemalloc.get_traced_memory()[0], resident_kb()
        work(25)
        gc.collect()
        grown, grown_rss = tracemalloc.get_traced_memory()[0] - before, resident_kb() - rss
        if grown < 20_000 and grown_rss < 4_000:
            break
    tracemalloc.stop()
    assert grown < 20_000, grown
    assert grown_rss < 4_000, grown_rss


def resident_kb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
