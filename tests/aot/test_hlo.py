"""Compiled programs are read, and their least time is that of the data sheet."""

import pytest
from hlo import Program, padded_bytes

from jaxdp.runtime.targets import Target
from jaxdp.sharding.program import Collective
from jaxdp.sharding.roofline import network_seconds

TPU = """HloModule step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), {1}: (2, {}, must-alias) }, entry=x

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

%gathering (data: u8[1000,3072], which: s32[4]) -> u8[4,3072] {
  %data = u8[1000,3072]{1,0:T(8,128)(4,1)} parameter(0)
  %which = s32[4]{0:T(128)} parameter(1)
  ROOT %taken = u8[4,3072]{1,0:T(8,128)(4,1)} gather(%data, %which), offset_dims={1}
}

ENTRY %main (a: f32[16,8]) -> f32[16,8] {
  %a = f32[16,8]{1,0:T(8,128)} parameter(0)
  %all = u8[1000,3072]{1,0:T(8,128)(4,1)} parameter(1)
  %which = s32[4]{0:T(128)} parameter(2)
  %rows = u8[4,3072]{1,0:T(8,128)(4,1)} fusion(%all, %which), calls=%gathering
  %begin = (s32[], f32[16,8]{1,0:T(8,128)}) tuple(%a, %a)
  %loop = (s32[], f32[16,8]{1,0:T(8,128)}) while(%begin), condition=%until, body=%body
  %sum = f32[16,8]{1,0:T(8,128)} all-reduce(%a), replica_groups=[2,4]<=[8], to_apply=%add
  %go = f32[64]{0} all-reduce-start(%a), replica_groups={{0,1},{2,3}}, to_apply=%add
  %work = f32[16,8]{1,0:T(8,128)} fusion(%a), kind=kLoop, calls=%inside
  %done = f32[64]{0} all-reduce-done(%go)
  ROOT %out = f32[16,8]{1,0:T(8,128)} copy(%sum)
}
"""

ON_CHIP = """HloModule step, is_scheduled=true

ENTRY %main (a: f32[16,128]) -> f32[16,128] {
  %a = f32[16,128]{1,0:T(8,128)} parameter(0)
  %start = (f32[16,128]{1,0:T(8,128)S(1)}, f32[16,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%a)
  %there = f32[16,128]{1,0:T(8,128)S(1)} copy-done(%start)
  %twice = f32[16,128]{1,0:T(8,128)(2,1)S(1)} fusion(%there, %there), kind=kLoop, calls=%inside
  ROOT %out = f32[16,128]{1,0:T(8,128)} fusion(%twice), kind=kLoop, calls=%inside
}
"""

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
    (found,) = (each.group_size for _, each, _ in program.everything() if each.name == "sum")
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


def test_a_program_is_read() -> None:
    program = Program(TPU)
    assert program.donated == 2
    tile = 16 * 128 * 4  # 8 columns take as much memory as 128
    (copy,) = [each for _, each, _ in program.everything() if each.opcode == "copy"]
    assert (copy.name, padded_bytes(copy), copy.values) == ("out", tile, 16 * 8 * 4)
    # The gather reads four rows of a thousand. Eight rows of u8 are a tile, however few are used.
    gathered = 8 * 3072
    of_loops = 3 * 2 * tile
    of_conditions = 3 * (1 + 4 + 4)
    started = tile + 64 * 4
    assert (
        program.bytes_moved
        == (2 * gathered + 4 * 128)
        + of_loops
        + of_conditions
        + 2 * tile
        + started
        + 2 * tile
        + 2 * tile
    )


def test_what_stays_on_the_chip_is_not_moved() -> None:
    # Read by the copy, written by the last fusion.
    assert Program(ON_CHIP).bytes_moved == 2 * 16 * 128 * 4
