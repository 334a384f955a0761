use super::*;

fn root(input: &[u8]) -> String {
    let pickle = parse(input).unwrap();
    pickle.repr(pickle.root())
}

fn fault(input: &[u8]) -> PickleErrorKind {
    parse(input).unwrap_err().kind
}

#[test]
fn plain_values() {
    assert_eq!(root(b"N."), "None");
    assert_eq!(root(b"\x80\x02K\x07K\x08\x86."), "(7, 8)");
    assert_eq!(root(b"J\xff\xff\xff\xff."), "-1");
    assert_eq!(root(b"M\x00\x01."), "256");
    assert_eq!(root(b"\x8a\x00."), "0");
    assert_eq!(root(b"\x8a\x01\xff."), "-1");
    assert_eq!(
        root(b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\x00."),
        "9223372036854775807"
    );
    assert_eq!(
        root(b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."),
        "<integer of 9 bytes>"
    );
    assert_eq!(
        root(b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\xff."),
        "-9223372036854775808"
    );
    assert_eq!(root(b"I01\n."), "True");
    assert_eq!(root(b"I12\n."), "12");
    assert_eq!(root(b"L-3L\n."), "-3");
    assert_eq!(root(b"L99999999999999999999L\n."), "99999999999999999999");
    assert_eq!(root(b"F2.5\n."), "2.5");
    assert_eq!(root(b"G\x40\x04\0\0\0\0\0\0."), "2.5");
    assert_eq!(root(b"S'a\\'b'\n."), "\"a'b\"");
    assert_eq!(root(b"V\\u5c42\n."), "'\u{5c42}'");
    assert_eq!(root(b"(K\x01K\x02t."), "(1, 2)");
    assert_eq!(root(b"(t."), "()");
    assert_eq!(root(b"K\x01\x85."), "(1,)");
    assert_eq!(root(b"\x80\x04\x95\x05\0\0\0\0\0\0\0\x8c\x01a\x94."), "'a'");
    assert_eq!(root(b"(K\x01K\x02K\x02\x91."), "frozenset({1, 2, 2})");
}

#[test]
fn containers_grow_in_any_order() {
    // Two lists that grow in turns, each through the memo.
    let mut input = b"]q\x00]q\x01".to_vec();
    for i in 0..100 {
        input.extend([
            b'h',
            0,
            b'K',
            i,
            b'a',
            b'h',
            1,
            b'K',
            255 - i,
            b'a',
            b'0',
            b'0',
        ]);
    }
    input.extend(b"\x86.");
    let pickle = parse(&input).unwrap();
    let lists = pickle.items(pickle.root());
    let values = |list| -> Vec<i64> {
        pickle
            .items(list)
            .iter()
            .map(|&i| pickle.int(i).unwrap())
            .collect()
    };
    assert_eq!(values(lists[0]), (0..100).collect::<Vec<_>>());
    assert_eq!(values(lists[1]), (156..=255).rev().collect::<Vec<_>>());
}

#[test]
fn later_keys_replace_earlier_ones_in_place() {
    let pickle = parse(b"}(U\x01aK\x01U\x01bK\x02U\x01aK\x03K\x05K\x06u.").unwrap();
    let entries: Vec<_> = pickle
        .entries(pickle.pairs(pickle.root()))
        .into_iter()
        .map(|(k, v)| (pickle.key_text(k), pickle.int(v).unwrap()))
        .collect();
    assert_eq!(
        entries,
        [
            ("a".to_owned(), 3),
            ("b".to_owned(), 2),
            ("5".to_owned(), 6)
        ]
    );
    let last = pickle.get(pickle.root(), "a").unwrap();
    assert_eq!(pickle.int(last), Some(3));
}

#[test]
fn calls_stay_names() {
    let pickle = parse(b"cos\nsystem\n(U\x02lstR.").unwrap();
    let Node::Reduce { callable, args } = pickle.node(pickle.root()) else {
        panic!("not a call");
    };
    assert!(pickle.is_global(callable, "os", "system"));
    assert_eq!(pickle.repr(args), "('ls',)");
    let by_stack = parse(b"\x80\x04\x8c\x02os\x8c\x06system\x93.").unwrap();
    assert_eq!(by_stack.repr(by_stack.root()), "os.system");
    let inst = parse(b"(K\x01icollections\ndeque\n.").unwrap();
    assert!(inst.globals().all(|g| inst.is_instantiated(g)));
    let assigned = parse(b"cos\npath\n}b.").unwrap();
    assert_eq!(assigned.assigned_globals().len(), 1);
    let extension = parse(b"\x82\x07.").unwrap();
    assert_eq!(extension.extensions(), [7]);
}

#[test]
fn state_and_items_of_objects() {
    let pickle = parse(b"ccollections\nOrderedDict\n)R(U\x01aK\x01u}U\x09_metadataNsb.").unwrap();
    let root = pickle.root();
    assert_eq!(pickle.assigned_pairs(root).len(), 2);
    let state = pickle.state(root).unwrap();
    assert!(pickle.get(state, "_metadata").is_some());
}

#[test]
fn memoize_numbers_by_entries_made() {
    // BINPUT 5, then MEMOIZE is entry 1, not 6.
    assert_eq!(root(b"K\x01q\x05K\x02\x940h\x01."), "2");
    // A far entry, then the table grows over it.
    assert_eq!(root(b"K\x07r\x00\x00\x00\x700j\x00\x00\x00\x70."), "7");
    assert_eq!(fault(b"N\x94h\x01."), PickleErrorKind::NoMemo(1));
    assert_eq!(
        fault(b"j\xff\xff\xff\xff."),
        PickleErrorKind::NoMemo(0xffff_ffff)
    );
}

#[test]
fn broken_pickles_are_refused() {
    assert!(matches!(fault(b""), PickleErrorKind::Truncated { .. }));
    assert!(matches!(fault(b"N"), PickleErrorKind::Truncated { .. }));
    assert!(matches!(
        fault(b"X\xff\xff\xff\x7fab"),
        PickleErrorKind::Truncated { .. }
    ));
    assert!(matches!(
        fault(b"\x8d\0\0\0\0\0\x01\0\0abc."),
        PickleErrorKind::Truncated {
            needed: 0x100_0000_0000,
            left: 4,
            ..
        }
    ));
    assert!(matches!(
        fault(b"\x8b\xff\xff\xff\xff."),
        PickleErrorKind::NegativeLength { .. }
    ));
    assert_eq!(fault(b"."), PickleErrorKind::StackUnderflow("STOP"));
    assert_eq!(fault(b"K\x01(."), PickleErrorKind::OpenMark(1));
    assert_eq!(fault(b"t."), PickleErrorKind::NoMark("TUPLE"));
    // The fence: what lies below a mark is out of reach.
    assert_eq!(
        fault(b"K\x01K\x02(\x86."),
        PickleErrorKind::StackUnderflow("TUPLE2")
    );
    assert_eq!(
        fault(b"}(K\x01u."),
        PickleErrorKind::StackUnderflow("SETITEMS")
    );
    assert_eq!(fault(b"\xff."), PickleErrorKind::UnknownOpcode(0xff));
    assert_eq!(fault(b"\x80\x63."), PickleErrorKind::Protocol(99));
    assert_eq!(fault(b"cos\nsystem"), PickleErrorKind::Unterminated);
    assert!(matches!(
        fault(b"K\x01K\x02R."),
        PickleErrorKind::Operand { .. }
    ));
    assert!(matches!(
        fault(b"K\x01)R."),
        PickleErrorKind::Operand { .. }
    ));
    assert!(matches!(
        fault(b"K\x01K\x02\x93."),
        PickleErrorKind::Operand { .. }
    ));
    assert!(matches!(
        fault(b"K\x01}b."),
        PickleErrorKind::Operand { .. }
    ));
    assert!(matches!(fault(b"NQ."), PickleErrorKind::Operand { .. }));
    assert!(matches!(fault(b"\x97."), PickleErrorKind::OutOfBand));
    assert!(matches!(fault(b"Iabc\n."), PickleErrorKind::Text { .. }));
    assert!(matches!(
        fault(b"ctorch._utils\n_rebuild_tensor_v2\n)RU\x01aNs."),
        PickleErrorKind::Operand { .. }
    ));
}

#[test]
fn nesting_of_any_depth_is_built_and_dropped() {
    let mut input = vec![b']'; 200_000];
    input.extend(vec![b'a'; 199_999]);
    input.push(b'.');
    let pickle = parse(&input).unwrap();
    assert_eq!(pickle.items(pickle.root()).len(), 1);
}

#[test]
fn memory_is_bounded() {
    let mut input = vec![b'N'; 1 << 24];
    let flood = parse_with_budget(Cow::Borrowed(&input), 1000).unwrap_err();
    assert!(matches!(
        flood.kind,
        PickleErrorKind::Truncated { .. } | PickleErrorKind::Memory { .. }
    ));
    input.fill(b'}');
    let dicts = parse_with_budget(Cow::Borrowed(&input), 1000).unwrap_err();
    assert!(matches!(dicts.kind, PickleErrorKind::Memory { .. }));
}

#[test]
fn a_value_has_16_bytes() {
    assert_eq!(size_of::<Node>(), 16);
}
