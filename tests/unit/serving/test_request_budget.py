"""What requests may take of a server's memory, whichever protocol brings them."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import numpy as np
import pytest

from halimede.serving import request_budget
from halimede.serving.errors import OverloadedError, ServeError, SlowRequestError, TooMuchError
from halimede.serving.grpc_handlers import InferRequest, parse, parts_of
from halimede.serving.request_budget import ARRIVAL_S, ARRIVING, MEMORY, SMALL, Charge, RequestBudget
from halimede.serving.tensors import MAX_TEXTS, MAX_VALUES, Tensor, check_count, check_inputs, count_of, from_json

LARGEST = 64 * 1024 * 1024


async def test_requests_share_the_memory_and_give_it_back() -> None:
    budget = RequestBudget(LARGEST)
    with Charge(budget) as first:
        first.take(MEMORY - 10)
        with Charge(budget) as second, pytest.raises(OverloadedError, match="try again later"):
            second.take(11)
        assert budget.used == MEMORY - 10
    assert budget.used == 0


async def test_one_request_of_the_largest_size_and_its_answer_always_fit() -> None:
    assert RequestBudget(MEMORY).memory == 2 * MEMORY


async def test_tensors_that_lie_in_a_body_take_no_more_than_it() -> None:
    budget = RequestBudget(LARGEST)
    with Charge(budget) as charge:
        charge.take(4000)
        charge.take_tensors([Tensor("x", "FP32", np.zeros(1000, np.float32))], 4000)
        assert budget.used == 4000
        charge.take_tensors([Tensor("x", "FP64", np.zeros(1000, np.float64))], 4000)
        assert budget.used == 8000
        assert charge.take_tensors([Tensor("t", "BYTES", np.array(["a", "b"], object))]) == 256


async def test_few_messages_of_unknown_size_arrive_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_budget, "WAIT_S", 0.05)
    budget, end = RequestBudget(LARGEST), asyncio.Event()
    arriving = [asyncio.ensure_future(budget.receive(end.wait)) for _ in range(ARRIVING // LARGEST)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await budget.receive(end.wait)
    end.set()
    assert all(await asyncio.gather(*arriving))
    assert await budget.receive(end.wait)


async def test_a_message_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_budget, "ARRIVAL_S", 0.05)
    with pytest.raises(SlowRequestError):
        await RequestBudget(LARGEST).receive(asyncio.Event().wait)


@pytest.mark.simulated
async def test_each_message_has_its_own_time_to_arrive() -> None:
    budget, loop = RequestBudget(LARGEST), asyncio.get_running_loop()

    async def slow(after_s: float) -> float:
        await asyncio.sleep(after_s)
        began = loop.time()
        with pytest.raises(SlowRequestError):
            await budget.receive(asyncio.Event().wait)
        return loop.time() - began

    async def quick() -> None:
        for _ in range(100):
            await budget.receive(lambda: asyncio.sleep(1))

    found, _ = await asyncio.gather(asyncio.gather(slow(0), slow(7)), quick())
    assert found == [pytest.approx(ARRIVAL_S, abs=0.001)] * 2
    assert await slow(1000) == pytest.approx(ARRIVAL_S, abs=0.001)


@pytest.mark.simulated
async def test_a_client_that_leaves_is_no_slow_one_and_leaves_its_place() -> None:
    budget = RequestBudget(LARGEST)
    for _ in range(2 * ARRIVING // LARGEST):
        leaving = asyncio.ensure_future(budget.receive(asyncio.Event().wait))
        await asyncio.sleep(1)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
    await asyncio.sleep(10 * ARRIVAL_S)
    assert await budget.receive(lambda: asyncio.sleep(1, "here")) == "here"


@pytest.mark.simulated
async def test_a_client_that_leaves_at_the_end_of_its_time_is_cancelled_and_no_slow_one() -> None:
    budget, loop = RequestBudget(LARGEST), asyncio.get_running_loop()
    leaving = asyncio.ensure_future(budget.receive(asyncio.Event().wait))
    await asyncio.sleep(0)
    # timers of one moment run in their order: the budget ends the wait, then its server cancels the task
    loop.call_at(loop.time() + ARRIVAL_S, leaving.cancel)
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert leaving.cancelled()


async def test_what_is_large_is_converted_off_the_loop_one_at_a_time() -> None:
    budget, at_once, most = RequestBudget(LARGEST), 0, 0
    threads: set[int] = set()

    def convert() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        threads.add(threading.get_ident())
        assert budget.used >= 100
        at_once -= 1

    with Charge(budget) as charge:
        await asyncio.gather(*(charge.convert(SMALL + 1, 100, convert) for _ in range(8)))
        assert (most, budget.used) == (1, 0)
        assert threading.get_ident() not in threads
        assert await charge.convert(SMALL, 10 * MEMORY, threading.get_ident) == threading.get_ident()


@pytest.mark.parametrize(
    "shape", [[0, 10**30], [0, 2**31, 2**31], [10**5000], [-1, 2], [1] * 17, [2**16, 2**16], [0, -1]]
)
def test_shapes_are_checked_before_anything_is_made_of_them(shape: list[int]) -> None:
    with pytest.raises(ServeError, match="shape") as refused:
        count_of("x", shape)
    assert len(str(refused.value)) < 500


def test_texts_and_values_of_a_request_are_bounded() -> None:
    def texts(count: int) -> msgspec.Struct:
        return msgspec.defstruct("Given", ["name", "shape", "datatype"])("x", [count], "BYTES")

    check_inputs([texts(MAX_TEXTS)])
    with pytest.raises(TooMuchError):
        check_inputs([texts(MAX_TEXTS), texts(1)])
    check_count("x", MAX_VALUES)
    with pytest.raises(TooMuchError):
        check_count("x", MAX_VALUES + 1)
    with pytest.raises(TooMuchError, match="more than"):
        count_of("x", [2**16, 2**16])


@pytest.mark.parametrize("nested", [False, True])
def test_a_long_list_is_read_in_parts_as_it_would_be_whole(nested: bool) -> None:
    given = np.arange(100_000, dtype=np.float64).reshape(-1, 2) / 7
    values = given.tolist() if nested else given.ravel().tolist()
    found = from_json("x", "FP64", [50_000, 2], msgspec.Raw(msgspec.json.encode(values)))
    assert np.array_equal(found.array, given)


@pytest.mark.parametrize(
    "data", [b'[0,"1"]', b"[0,null]", b"[0,{}]", b"0", b"[0]", b"[0,1,2]", b"[1.5,0]", b"[[],0]", b"[256,0]"]
)
def test_a_list_that_does_not_hold_what_is_declared_is_refused(data: bytes) -> None:
    with pytest.raises(ServeError):
        from_json("x", "INT8", [2], msgspec.Raw(data))


def test_raw_contents_of_a_large_message_stay_where_they_are() -> None:
    asked = InferRequest(model_name="m", id="7", raw_input_contents=[bytes(100_000), b"12345678"])
    asked.inputs.add(name="x", datatype="UINT8", shape=[100_000])
    asked.inputs.add(name="y", datatype="INT64", shape=[1])
    data = asked.SerializeToString()
    typed, raw = parts_of(data)
    assert (len(typed) < 100, [len(part) for part in raw]) == (True, [100_000, 8])
    found = parse(typed, raw)
    assert (found.model, found.id, [t.array.nbytes for t in found.tensors]) == ("m", "7", [100_000, 8])
    for cut in (1, 50_000, len(data) - 1):
        with pytest.raises(ServeError):
            parse(*parts_of(data[:cut] + bytes(100_000)))
