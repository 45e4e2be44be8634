"""How many clients a GPU holds: measured, and halved where that was too many; no result depends on it."""

import pytest
import torch

from fedray.federate.device.memory import FIRST, ROOM, Stack
from fedray.federate.failures import stage
from fedray.federate.local_rounds import LocalRounds
from tests.helpers import block, differing, play, small_plan


class Pretended:
    """A memory of so many bytes, of which every client takes ``each`` at the peak and a library ``fixed``."""

    def __init__(self, total, each, fixed=0, used=100):
        self.bytes, self.each, self.fixed, self.used = total, each, fixed, used
        self.clients = self.freed = 0

    def watch(self):
        return self.used

    def peak(self):
        return self.used + self.fixed + self.each * self.clients

    def total(self):
        return self.bytes

    def free(self):
        self.freed += 1


def watch(stack, memory, clients):
    with stack.watched(clients):
        memory.clients = clients


def test_the_first_stack_is_small_and_its_peak_says_how_many_fit():
    memory = Pretended(10_100, each=90)
    stack = Stack(1000, memory)
    assert stack.size == FIRST
    watch(stack, memory, FIRST)
    assert (stack.per_client, stack.size) == (90, ROOM * 10_000 // 90)


def test_a_larger_stack_corrects_the_estimate_and_a_smaller_one_does_not():
    memory = Pretended(10_100, each=90, fixed=800)  # a library's own memory weighs on the first stack
    stack = Stack(1000, memory)
    watch(stack, memory, FIRST)
    assert stack.size == ROOM * 10_000 // 190
    watch(stack, memory, stack.size)
    known = stack.size
    assert known == ROOM * 10_000 // (90 + -(-800 // 47))
    watch(stack, memory, 2)
    assert stack.size == known
    memory.used += 5000  # buffers of that size
    watch(stack, memory, known)
    assert stack.size == known


def test_never_more_than_there_are_nor_less_than_one():
    for total, expected in ((10**9, 20), (150, 1)):
        memory = Pretended(total, each=90)
        stack = Stack(20, memory)
        watch(stack, memory, FIRST)
        assert stack.size == expected


def test_half_of_what_did_not_fit_is_the_most_from_then_on():
    memory = Pretended(10**9, each=1)
    stack = Stack(100, memory)
    assert (stack.halve(7), stack.size, memory.freed) == (3, 3, 1)
    watch(stack, memory, 3)
    assert stack.size == 3
    assert Stack(100).halve(1) == 1


def test_buffers_that_come_to_stay_do_not_shrink_a_stack_that_fits():
    memory = Pretended(10_100, each=90)
    stack = Stack(50, memory)
    watch(stack, memory, FIRST)
    assert stack.size == 50
    memory.used += 6000
    watch(stack, memory, 50 - FIRST)
    watch(stack, memory, 50)
    assert stack.size == 50


def test_a_stack_without_a_memory_to_watch_keeps_its_size():
    stack = Stack(5)
    with stack.watched(5):
        pass
    assert stack.size == 5


def crowded(monkeypatch, most, seen):
    """A device whose memory holds ``most`` clients at a time."""
    plain = LocalRounds._play

    def play(self, functions, round_number, index, steps, client, down, data):
        seen.append(len(data.total) if data.total.ndim else 0)  # 0: a client alone
        if seen[-1] > most:
            with stage("step", f"client {self._ids[index[0]]}", round_number):
                raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain(self, functions, round_number, index, steps, client, down, data)

    monkeypatch.setattr(LocalRounds, "_play", play)


@pytest.mark.parametrize("backend", ["vmap", "graph"])
def test_a_stack_that_does_not_fit_is_halved_and_nothing_is_lost(backend, monkeypatch):
    plan = small_plan("pfedbayes")
    rounds = ((0, 1, 2, 3, 4, 5), (1, 2, 4, 5))
    undisturbed = play(plan, [block(plan, backend=backend)], rounds)
    seen = []
    crowded(monkeypatch, 2, seen)
    host = block(plan, backend=backend)
    assert differing(play(plan, [host], rounds), undisturbed) == []
    assert seen == [6, 3, *[1] * 10]  # 6 and 3 are too many; half of 3 is 1


def test_the_halving_is_said_in_one_line_and_is_no_failure_of_a_client(monkeypatch):
    plan = small_plan("fedavg")
    crowded(monkeypatch, 3, [])
    host = block(plan, backend="vmap")
    down = plan.algorithm.broadcast(plan.context, plan.initial_server(), range(6))
    reply = host.train(1, range(6), down)
    assert reply.ids == tuple(range(6))
    (said,) = reply.failures
    assert (said.kind, said.action) == ("memory", "at most 3 at a time from now on")
    assert "6 clients at a time do not fit" in said.reason
    assert host.train(2, range(6), down).failures == ()


def test_a_client_that_does_not_fit_alone_fails(monkeypatch):
    plan = small_plan("fedavg")
    crowded(monkeypatch, 0, [])
    host = block(plan, backend="vmap")
    reply = host.train(1, (0, 1), plan.algorithm.broadcast(plan.context, plan.initial_server(), (0, 1)))
    assert reply.ids == ()
    assert [failure.who for failure in reply.failures if not failure.action] == ["client 0", "client 1"]


def test_the_memory_of_a_stack_that_failed_is_free_before_the_halves_begin(monkeypatch):
    import weakref

    plan, held = small_plan("fedavg"), []
    plain = LocalRounds._play

    def play(self, functions, round_number, index, steps, client, down, data):
        if len(data.total) > 3:
            large = torch.empty(10)
            held.append(weakref.ref(large))
            with stage("step", "stack", round_number):
                raise torch.OutOfMemoryError("CUDA out of memory.")
        assert held[0]() is None
        return plain(self, functions, round_number, index, steps, client, down, data)

    monkeypatch.setattr(LocalRounds, "_play", play)
    host = block(plan, backend="vmap")
    reply = host.train(1, range(6), plan.algorithm.broadcast(plan.context, plan.initial_server(), range(6)))
    assert reply.ids == tuple(range(6))
    assert held
