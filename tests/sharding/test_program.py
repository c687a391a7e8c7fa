"""Collectives are read from a compiled program, and their least time from the data sheet."""

import pytest

from jaxdp.runtime.targets import Target
from jaxdp.sharding.program import Collective, Program
from jaxdp.sharding.roofline import network_seconds

TPU = """HloModule step, is_scheduled=true

%body (p: (s32[], f32[16,8])) -> (s32[], f32[16,8]) {
  %p = (s32[], f32[16,8]{1,0:T(8,128)}) parameter(0)
  %x = f32[16,8]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %slow = f32[16,8]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%inside
}

%until (p: (s32[], f32[16,8])) -> pred[] {
  %bound = s32[]{:T(128)} constant(3)
  %p = (s32[], f32[16,8]{1,0:T(8,128)}) parameter(0)
  %at = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %less = pred[]{:T(512)} compare(%at, %bound), direction=LT
}

ENTRY %main (a: f32[16,8]) -> f32[16,8] {
  %a = f32[16,8]{1,0:T(8,128)} parameter(0)
  %begin = (s32[], f32[16,8]{1,0:T(8,128)}) tuple(%a, %a)
  %loop = (s32[], f32[16,8]{1,0:T(8,128)}) while(%begin), condition=%until, body=%body
  %sum = f32[16,8]{1,0:T(8,128)} all-reduce(%a), replica_groups=[2,4]<=[8], to_apply=%add
  %go = f32[64]{0} all-reduce-start(%a), replica_groups={{0,1},{2,3}}, to_apply=%add
  %work = f32[16,8]{1,0:T(8,128)} fusion(%a), kind=kLoop, calls=%inside
  ROOT %done = f32[64]{0} all-reduce-done(%go)
}
"""


def test_collectives_are_read() -> None:
    found = Program(TPU).collectives()
    assert sorted(found, key=lambda each: each.devices) == [
        Collective("all-reduce", 2, 1, 16 * 8 * 4, 1, 1),
        Collective("all-reduce", 4, 1, 16 * 8 * 4, 0, 0),
    ]


@pytest.mark.parametrize("noted", ["", ', backend_config={"known_trip_count":{"n":"3"}}'])
def test_a_collective_in_a_loop_counts_as_often_as_it_runs(noted: str) -> None:
    text = TPU.replace("fusion(%x), kind=kLoop, calls=%inside", "all-reduce(%x), to_apply=%add")
    program = Program(text.replace("body=%body", "body=%body" + noted))
    assert Collective("all-reduce", 0, 3, 3 * 16 * 8 * 4, 0, 0) in program.collectives()


SCATTER = """HloModule step, is_scheduled=true

%all-reduce-scatter.4 (x: f32[16,8], y: f32[4]) -> (f32[4,8], f32[1]) {
  %x = f32[16,8]{1,0:T(8,128)} parameter(0)
  %y = f32[4]{0:T(128)} parameter(1)
  %sum = (f32[16,8]{1,0:T(8,128)}, f32[4]{0:T(128)}) all-reduce(%x, %y), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %mine = f32[4,8]{1,0:T(8,128)} dynamic-slice(%sum), dynamic_slice_sizes={4,8}
  %own = f32[1]{0:T(128)} dynamic-slice(%sum), dynamic_slice_sizes={1}
  ROOT %both = (f32[4,8]{1,0:T(8,128)}, f32[1]{0:T(128)}) tuple(%mine, %own)
}

ENTRY %main (x: f32[16,8], y: f32[4]) -> (f32[4,8], f32[1]) {
  %x = f32[16,8]{1,0:T(8,128)} parameter(0)
  %y = f32[4]{0:T(128)} parameter(1)
  ROOT %parts = (f32[4,8]{1,0:T(8,128)}, f32[1]{0:T(128)}) fusion(%x, %y), kind=kCustom, calls=%all-reduce-scatter.4
}
"""


def test_the_bytes_of_an_asynchronous_all_reduce_count_once() -> None:
    started = "%go = ((f32[16,8]{1,0}), f32[16,8]{1,0}) all-reduce-start(%a)"
    program = Program(TPU.replace("%go = f32[64]{0} all-reduce-start(%a)", started))
    assert Collective("all-reduce", 2, 1, 16 * 8 * 4, 1, 1) in program.collectives()


def test_a_reduce_scatter_of_a_tpu_is_read_from_a_fusion() -> None:
    assert Program(SCATTER).collectives() == [
        Collective("reduce-scatter", 4, 1, 16 * 8 * 4 + 4 * 4, 0, 0)
    ]


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1},{2,3}}", 2),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("mesh['data'=2,'space'=4] {'space'}", 4),
        ("mesh['data'=2,'space'=4] {'data','space'}", 8),
        ("mesh['data'=2,'space'=4], device_ids=(0,2,4,6,1,3,5,7) {'data'}", 2),
        ("mesh['axis_0'=3,'axis_1'=8] {'axis_0','axis_1':(2)4}", 12),  # a part of an axis
        ("mesh[data=2,space=4] {data}", 2),
        ("mesh['data'=2] {}", 1),
        ("{}", 0),
    ],
)
def test_devices_of_a_collective_are_read_in_each_form_of_its_groups(
    groups: str, size: int
) -> None:
    program = Program(
        TPU.replace("replica_groups=[2,4]<=[8]", f"replica_groups={groups}, channel_id=1")
    )
    (found,) = (each.group_size for _, each, _ in program.scheduled() if each.name == "sum")
    assert found == size


def test_the_network_is_a_ring_within_a_host_and_one_between_hosts() -> None:
    reduced = Collective("all-reduce", 0, 1, 8 * 10**9, 0, 0)
    one_host, four = Target.parse("cuda:h100:8"), Target.parse("cuda:h100:32")
    within = 2 * 7 / 8 * 8e9 / 450e9
    assert network_seconds(one_host, [reduced]) == pytest.approx(within)
    assert network_seconds(four, [reduced]) == pytest.approx(within + 2 * 3 / 4 * 1e9 / 50e9)
    assert network_seconds(Target.parse("cuda:h100:1"), [reduced]) == 0
    # Google states 51.2 TB/s for the all-reduce of a pod of 256 v5e.
    sent = 256 * 2 * 255 / 256 * reduced.bytes
    assert sent / network_seconds(Target.parse("tpu:v5e:16x16"), [reduced]) == pytest.approx(
        51.2e12
    )
