"""The collectives of compiled programs are read."""

import pytest
from hlo import Collective, read_collectives

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


ONE = 16 * 8 * 4


def test_collectives_are_read() -> None:
    assert read_collectives(TPU) == [Collective("all-reduce", 2, 2 * ONE)]


@pytest.mark.parametrize("noted", ["", ', backend_config={"known_trip_count":{"n":"3"}}'])
def test_a_collective_in_a_loop_counts_as_often_as_it_runs(noted: str) -> None:
    text = TPU.replace("fusion(%x), kind=kLoop, calls=%inside", "all-gather(%x), dimensions={0}")
    text = text.replace("body=%body", "body=%body" + noted)
    assert Collective("all-gather", 3, 3 * ONE) in read_collectives(text)


def test_the_bytes_of_an_asynchronous_all_reduce_count_once() -> None:
    started = "%go = ((f32[16,8]{1,0}), f32[16,8]{1,0}) all-reduce-start(%a)"
    text = TPU.replace("%go = f32[64]{0} all-reduce-start(%a)", started)
    assert read_collectives(text) == [Collective("all-reduce", 2, 2 * ONE)]


def test_a_reduce_scatter_of_a_tpu_is_read_from_a_fusion() -> None:
    assert read_collectives(SCATTER) == [Collective("reduce-scatter", 1, ONE + 4 * 4)]


def test_what_a_tpu_divides_among_fusions_counts_once() -> None:
    again = "  %first = (f32[4,8]{1,0}) fusion(%x), kind=kCustom, calls=%part\n  ROOT %parts"
    part = SCATTER[SCATTER.index("%all-reduce-scatter.4 (") : SCATTER.index("ENTRY")]
    both = part.replace("%all-reduce-scatter.4", "%part") + "\n" + SCATTER
    assert read_collectives(both.replace("  ROOT %parts", again)) == read_collectives(SCATTER)


def test_collectives_of_a_tpu_with_one_channel_and_other_shapes_are_several() -> None:
    again = "  %first = (f32[8,8]{1,0}) fusion(%x), kind=kCustom, calls=%other\n  ROOT %parts"
    part = SCATTER[SCATTER.index("%all-reduce-scatter.4 (") : SCATTER.index("ENTRY")]
    other = part.replace("%all-reduce-scatter.4", "%all-reduce-scatter.5").replace("16,8", "32,8")
    text = (other + "\n" + SCATTER).replace(
        "  ROOT %parts", again.replace("other", "all-reduce-scatter.5")
    )
    assert read_collectives(text) == [Collective("reduce-scatter", 2, 3 * ONE + 2 * 4 * 4)]


def test_collectives_of_a_gpu_share_a_channel() -> None:
    """XLA:GPU gives the same number to collectives that have nothing to do with each other."""
    text = TPU.replace("replica_groups", "channel_id=1, replica_groups")
    assert read_collectives(text) == [Collective("all-reduce", 2, 2 * ONE)]
