//! What holds for the allocator model whatever is asked of it, and for replays whatever a file says.

use inspect_checkpoint::simulate::recording::{
    Action, DeviceRecording, RecordedSegment, Recording, StackId, TraceEvent,
};
use inspect_checkpoint::simulate::replay::{ReplayOptions, complete, replay};
use inspect_checkpoint::simulate::{
    AllocConf, Allocator, BlockId, BlockState, BlockView, DeviceLimits, Placement, Pool, PoolId,
    SegmentView, StatKind,
};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Call {
    Alloc { bytes: u64, stream: u64 },
    Free { which: usize },
    RequestFree { which: usize },
    EmptyCache,
    Configure(&'static str),
    Fraction(f64),
}

const SETTINGS: [&str; 6] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
    "expandable_segments:True,large_segment_size_mb:32",
];

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..4096_u64,
        1..2_000_000_u64,
        (1..60_u64, -1025..1025_i64).prop_map(|(mib, off)| (mib << 20).saturating_add_signed(off)),
        Just(u64::MAX),
    ]
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        10 => (sizes(), 0..3_u64).prop_map(|(bytes, stream)| Call::Alloc { bytes, stream }),
        8 => any::<usize>().prop_map(|which| Call::Free { which }),
        2 => any::<usize>().prop_map(|which| Call::RequestFree { which }),
        1 => Just(Call::EmptyCache),
        1 => proptest::sample::select(&SETTINGS[..]).prop_map(Call::Configure),
        1 => (0.0..1.2).prop_map(Call::Fraction),
    ];
    proptest::collection::vec(call, 1..120)
}

/// Everything that must hold at any moment.
fn check(allocator: &Allocator) {
    let stats = allocator.stats();
    for kind in StatKind::ALL {
        let all = stats.get(kind, None);
        let pools = [Pool::Small, Pool::Large].map(|pool| stats.get(kind, Some(pool)));
        for stat in [all, pools[0], pools[1]] {
            assert!(stat.peak >= stat.current, "{kind:?}");
            assert_eq!(stat.allocated - stat.freed, stat.current, "{kind:?}");
        }
        assert_eq!(all.current, pools[0].current + pools[1].current, "{kind:?}");
    }
    let current = |kind| stats.get(kind, None).current;
    assert!(current(StatKind::AllocatedBytes) <= current(StatKind::ActiveBytes));
    assert!(current(StatKind::RequestedBytes) <= current(StatKind::ActiveBytes));
    assert!(current(StatKind::ActiveBytes) <= current(StatKind::ReservedBytes));
    let segments = allocator.segments();
    let (mut active, mut free, mut reserved) = (0, 0, 0);
    for segment in &segments {
        let mut at = segment.addr;
        let mut last = None;
        for block in &segment.blocks {
            assert_eq!(block.addr, at, "gap or overlap");
            at += block.size_bytes;
            assert!(block.size_bytes > 0 && block.size_bytes.is_multiple_of(512));
            assert!(block.requested_bytes <= block.size_bytes);
            let is_free = block.state == BlockState::Free;
            assert!(
                !(is_free && last == Some(BlockState::Free)),
                "two free neighbours"
            );
            last = Some(block.state);
            *(if is_free { &mut free } else { &mut active }) += block.size_bytes;
        }
        assert_eq!(at - segment.addr, segment.size_bytes);
        reserved += segment.size_bytes;
    }
    assert_eq!(active, current(StatKind::ActiveBytes));
    assert_eq!(active + free, reserved);
    assert_eq!(reserved, current(StatKind::ReservedBytes));
    let ends = segments
        .windows(2)
        .all(|pair| pair[0].addr + pair[0].size_bytes <= pair[1].addr);
    assert!(ends, "segments overlap");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_books_balance(
        calls in calls(),
        settings in proptest::sample::select(&SETTINGS[..]),
        total_mib in 8..2000_u64,
    ) {
        let conf = AllocConf::parse(settings).unwrap();
        let limits = DeviceLimits { total_bytes: total_mib << 20 };
        let mut allocator = Allocator::new(conf, limits, Placement::Upward);
        let (mut live, mut pending): (Vec<BlockId>, Vec<BlockId>) = (Vec::new(), Vec::new());
        for call in calls {
            match call {
                Call::Alloc { bytes, stream } => {
                    if let Ok(Some(block)) = allocator.alloc(bytes, stream) {
                        prop_assert!(!live.contains(&block) && !pending.contains(&block));
                        live.push(block);
                    }
                }
                Call::Free { which } if !live.is_empty() => {
                    let block = live.swap_remove(which % live.len());
                    allocator.free(block).unwrap();
                    prop_assert!(allocator.free(block).is_err(), "freed twice");
                }
                Call::RequestFree { which } if !live.is_empty() => {
                    let block = live.swap_remove(which % live.len());
                    allocator.request_free(block).unwrap();
                    pending.push(block);
                }
                Call::Free { .. } | Call::RequestFree { .. } => {}
                Call::EmptyCache => allocator.empty_cache(),
                Call::Configure(text) => {
                    // Some are refused after a larger `large_segment_size_mb`, which stays.
                    if let Ok(conf) = allocator.conf().reparse(text) {
                        allocator.configure(conf);
                    }
                }
                Call::Fraction(fraction) => allocator.set_memory_fraction(fraction),
            }
            check(&allocator);
        }
        for block in pending {
            allocator.complete_free(block).unwrap();
        }
        for block in live {
            allocator.free(block).unwrap();
        }
        allocator.empty_cache();
        check(&allocator);
        for kind in StatKind::ALL {
            prop_assert_eq!(allocator.stats().get(kind, None).current, 0);
        }
        prop_assert_eq!(allocator.device_used_bytes(), 0);
        prop_assert!(allocator.segments().is_empty());
    }
}

/// Addresses that meet each other now and then, and some that are nonsense.
fn addresses() -> impl Strategy<Value = u64> {
    let base: u64 = 0x7f00_0000_0000;
    prop_oneof![
        6 => (0..40_u64).prop_map(move |n| base + n * 512),
        6 => (0..40_u64).prop_map(move |n| base + (n << 21)),
        1 => any::<u64>(),
        1 => Just(0),
        1 => Just(u64::MAX - 511),
    ]
}

fn event_sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..100_000_u64,
        4 => (0..20_u64).prop_map(|n| n << 21),
        2 => (0..4000_u64).prop_map(|n| n * 512),
        1 => any::<u64>(),
    ]
}

fn events() -> impl Strategy<Value = Vec<TraceEvent>> {
    let actions = vec![
        Action::Alloc,
        Action::Alloc,
        Action::FreeRequested,
        Action::FreeCompleted,
        Action::SegmentAlloc,
        Action::SegmentFree,
        Action::SegmentMap,
        Action::SegmentUnmap,
        Action::Snapshot,
        Action::OutOfMemory,
    ];
    let event = (
        proptest::sample::select(actions),
        addresses(),
        event_sizes(),
        0..2_u64,
    );
    let event = event.prop_map(|(action, addr, bytes, stream)| TraceEvent {
        action,
        addr,
        bytes,
        stream,
        time_us: None,
        stack: StackId::default(),
    });
    proptest::collection::vec(event, 0..60)
}

fn segments() -> impl Strategy<Value = Vec<RecordedSegment>> {
    let block = (event_sizes(), event_sizes(), 0..3_u8, 0..8_u8);
    let segment = (
        addresses(),
        proptest::collection::vec(block, 0..5),
        any::<bool>(),
        any::<bool>(),
        0..2_u64,
    );
    let segment = segment.prop_map(|(addr, blocks, large, is_expandable, stream)| {
        let mut at = addr;
        let blocks: Vec<BlockView> = blocks
            .into_iter()
            .map(|(size, requested, state, lie)| {
                let size_bytes = if lie == 0 { size } else { size / 512 * 512 };
                let block = BlockView {
                    addr: at,
                    size_bytes,
                    requested_bytes: if lie == 1 {
                        requested
                    } else {
                        requested.min(size_bytes)
                    },
                    state: [
                        BlockState::Free,
                        BlockState::Allocated,
                        BlockState::PendingFree,
                    ][usize::from(state)],
                };
                at = at.wrapping_add(size_bytes);
                block
            })
            .collect();
        let size_bytes = blocks
            .iter()
            .fold(0_u64, |sum, b| sum.wrapping_add(b.size_bytes));
        let segment = SegmentView {
            addr,
            size_bytes,
            stream,
            pool: if large { Pool::Large } else { Pool::Small },
            pool_id: PoolId(0, u64::from(size_bytes % 3 == 1)),
            is_expandable,
            blocks,
        };
        let stacks = Vec::new();
        RecordedSegment { segment, stacks }
    });
    proptest::collection::vec(segment, 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_recording_breaks_a_replay(
        events in events(),
        segments in proptest::option::of(segments()),
        settings in proptest::sample::select(&SETTINGS[..]),
    ) {
        let mut recording = Recording {
            settings: Some(settings.to_owned()),
            devices: vec![DeviceRecording { device: 0, events, segments, unknown_requests: 0 }],
            ..Recording::default()
        };
        let options = ReplayOptions {
            alloc_conf: Some("max_split_size_mb:20".to_owned()),
            memory_bytes: Some(64 << 20),
            find_smallest_memory: true,
            top: 3,
        };
        let report = replay(&recording, &options).unwrap();
        let device = &report.devices[0];
        prop_assert!(device.peak_allocated_bytes <= device.peak_reserved_bytes);
        prop_assert_eq!(device.mismatches > 0, device.first_mismatch.is_some());
        complete(&mut recording);
        replay(&recording, &ReplayOptions::default()).unwrap();
    }
}
