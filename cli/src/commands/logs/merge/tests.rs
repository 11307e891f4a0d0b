use super::*;

fn part(rank: u32, lines: &[&str]) -> LogsResponse {
    LogsResponse {
        rank,
        generation: 1,
        lines: lines.iter().map(|line| (*line).to_owned()).collect(),
        ..LogsResponse::default()
    }
}

fn plain() -> Merge {
    Merge::new(Style::default(), Instant::now())
}

fn flush(merge: &mut Merge, now: Instant) -> String {
    String::from_utf8(merge.flush(now)).unwrap()
}

fn finish(merge: &mut Merge, now: Instant) -> String {
    String::from_utf8(merge.finish(now)).unwrap()
}

/// What is printed of these lines if not a byte is added.
fn exact(lines: &[(u32, &[u8])], hold: bool) -> (Vec<u8>, Vec<String>) {
    let now = Instant::now();
    let style = Style {
        exact: true,
        ..Style::default()
    };
    let mut merge = Merge::new(style, now);
    if hold {
        merge.hold();
    }
    let mut out = Vec::new();
    for (rank, line) in lines {
        let raw = LogsResponse {
            raw: vec![line.to_vec()],
            ..part(*rank, &[])
        };
        merge.add(raw, now);
        if !hold {
            out.extend(merge.flush(now + OPEN_WAIT));
        }
    }
    out.extend(merge.finish(now));
    (out, merge.take_remarks())
}

fn with_prefix() -> Merge {
    Merge::new(
        Style {
            prefix: true,
            ..Style::default()
        },
        Instant::now(),
    )
}

#[test]
fn ranks_are_merged_by_time() {
    let (mut merge, now) = (with_prefix(), Instant::now());
    merge.add(part(0, &["T1 stdout F a", "T4 stderr F d"]), now);
    merge.add(part(1, &["T2 stdout F b", "T3 stdout F "]), now);
    assert_eq!(
        flush(&mut merge, now),
        "[rank 0] a\n[rank 1] b\n[rank 1] \n[rank 0] d\n"
    );
    assert_eq!(flush(&mut merge, now), "");
}

#[test]
fn a_clock_that_was_set_back_changes_no_order_within_a_log() {
    let (mut merge, now) = (plain(), Instant::now());
    merge.add(
        part(
            0,
            &[
                "T5 stdout F a",
                "T1 stdout F b",
                "T2 stderr F c",
                "T6 stdout F d",
            ],
        ),
        now,
    );
    merge.add(part(1, &["T3 stdout F x"]), now);
    assert_eq!(flush(&mut merge, now), "x\na\nb\nc\nd\n");
}

#[test]
fn pieces_become_one_line_at_the_time_of_the_first() {
    let now = Instant::now();
    let mut merge = Merge::new(
        Style {
            timestamps: true,
            ..Style::default()
        },
        Instant::now(),
    );
    merge.add(part(0, &["T1 stdout P one "]), now);
    merge.add(part(1, &["T2 stdout F other"]), now);
    merge.add(
        part(
            0,
            &[
                "T3 stdout P two ",
                "T3 stdout F three",
                "T4 stdout P no end",
            ],
        ),
        now,
    );
    assert_eq!(flush(&mut merge, now), "T1 one two three\nT2 other\n");
    assert_eq!(finish(&mut merge, now), "T4 no end\n");
}

#[test]
fn a_part_of_a_line_of_one_stream_is_not_glued_to_the_other_s() {
    let (mut merge, now) = (plain(), Instant::now());
    let lines = [
        "T1 stdout P Epoch 1: ",
        "T2 stderr F a warning",
        "T3 stdout P 50%",
        "T4 stderr F another",
        "T5 stdout F  done",
    ];
    merge.add(part(0, &lines), now);
    assert_eq!(
        finish(&mut merge, now),
        "Epoch 1: 50% done\na warning\nanother\n"
    );
}

#[test]
fn exact_output_has_the_bytes_that_were_written_and_no_other() {
    let long = [b"T1 stdout P ".as_slice(), &[b'x'; 16 << 10]].concat();
    let endless: Vec<(u32, &[u8])> = vec![(0, &long); 200];
    for hold in [false, true] {
        for (lines, bytes) in [
            (
                &[(0, b"T1 stdout F a\r".as_slice()), (0, b"T2 stdout F:E b")][..],
                b"a\r\nb".as_slice(),
            ),
            (&[(0, b"T1 stdout F \xff\0 \xc3")], b"\xff\0 \xc3\n"),
            (
                &[(0, b"T1 stdout P \r 1%"), (0, b"T2 stdout F:E \r 2%")],
                b"\r 1%\r 2%",
            ),
            (&[(0, b"T1 stdout P half")], b"half"),
            (&[(0, b"T1 stdout F:E "), (0, b"T2 stdout F ")], b"\n"),
            (
                &[(0, b"T1 stdout F:E one"), (1, b"T2 stdout F:E two")],
                b"onetwo",
            ),
            (&[], b""),
        ] {
            assert_eq!(exact(lines, hold).0, bytes, "{lines:?}");
        }
        let (out, _) = exact(&endless, hold);
        assert!(out == vec![b'x'; 200 * (16 << 10)], "{} bytes", out.len());
    }
}

#[test]
fn whoever_waits_for_the_end_gets_whole_lines() {
    let lines: [(u32, &[u8]); 4] = [
        (0, b"T1 stdout P one "),
        (1, b"T2 stdout F other"),
        (0, b"T3 stderr F beside"),
        (0, b"T4 stdout F line"),
    ];
    assert_eq!(exact(&lines, true).0, b"one line\nother\nbeside\n");
    assert_eq!(exact(&lines, false).0, b"one other\nbeside\nline\n");
}

#[test]
fn what_muster_says_inside_a_log_is_no_output_of_its_rank() {
    let lines: [(u32, &[u8]); 2] = [
        (
            0,
            b"T1 stderr F:M [muster] 7 bytes of this log are missing here: disk full",
        ),
        (0, b"T1 stdout F [muster] says the rank itself"),
    ];
    let (out, remarks) = exact(&lines, true);
    assert_eq!(out, b"[muster] says the rank itself\n");
    assert_eq!(remarks.len(), 1);
    let (mut merge, now) = (plain(), Instant::now());
    merge.add(
        part(0, &["T1 stderr F:M [muster] x", "T2 stdout F:E y"]),
        now,
    );
    assert_eq!(finish(&mut merge, now), "[muster] x\ny\n");
}

#[test]
fn the_same_line_twice_is_printed_twice() {
    let (mut merge, now) = (plain(), Instant::now());
    merge.add(part(0, &["T1 stdout F a", "T1 stdout F a"]), now);
    assert_eq!(flush(&mut merge, now), "a\na\n");
}

#[test]
fn a_line_without_end_is_cut() {
    let (mut merge, now) = (plain(), Instant::now());
    let piece = format!("T1 stdout P {}", "x".repeat(16 << 10));
    for _ in 0..200 {
        merge.add(part(0, &[&piece]), now);
    }
    assert!(
        merge
            .open
            .values()
            .all(|open| open.text.len() <= LINE_MAX + (16 << 10))
    );
    assert!(!flush(&mut merge, now).is_empty());
}

#[test]
fn a_line_that_stands_still_is_shown_before_its_end() {
    let (mut merge, start) = (with_prefix(), Instant::now());
    let still = start + OPEN_WAIT;
    merge.add(part(0, &["T1 stdout P Loading ... "]), start);
    assert_eq!(merge.due(), Some(still));
    assert_eq!(flush(&mut merge, start), "", "its end may be on its way");
    assert_eq!(flush(&mut merge, still), "[rank 0] Loading ... ");
    assert_eq!(merge.due(), None);
    merge.add(part(0, &["T2 stdout F done"]), still);
    assert_eq!(flush(&mut merge, still), "done\n");

    merge.add(part(0, &["T3 stdout P one "]), start);
    assert_eq!(flush(&mut merge, still), "[rank 0] one ");
    merge.add(part(1, &["T4 stdout F other"]), still);
    merge.add(part(0, &["T5 stdout F two"]), still);
    assert_eq!(flush(&mut merge, still), "\n[rank 1] other\n[rank 0] two\n");

    merge.add(part(0, &["T6 stdout P no end"]), start);
    assert_eq!(flush(&mut merge, still), "[rank 0] no end");
    assert_eq!(
        (merge.end_line(), merge.end_line()),
        ("\n", ""),
        "before a word on stderr"
    );
    merge.add(part(0, &["T7 stdout P  at all"]), start);
    assert_eq!(
        flush(&mut merge, still) + &finish(&mut merge, still),
        "[rank 0]  at all\n"
    );
}

/// Ranks that print without a pause must not hold back all lines.
#[test]
fn what_waits_is_due_however_much_comes_behind_it() {
    let (mut merge, start) = (plain(), Instant::now());
    merge.add(part(0, &["T1 stdout F a"]), start);
    merge.add(part(0, &["T2 stdout P bar"]), start + ORDER_WINDOW / 2);
    assert_eq!(merge.due(), Some(start + ORDER_WINDOW));
    merge.add(part(0, &["T3 stdout P bar"]), start + OPEN_WAIT);
    assert_eq!(flush(&mut merge, start + OPEN_WAIT), "a\n");
    assert_eq!(merge.due(), Some(start + ORDER_WINDOW / 2 + OPEN_WAIT));
}

#[test]
fn a_progress_bar_is_redrawn_on_a_terminal_and_whole_in_a_pipe() {
    let start = Instant::now();
    let shown = |style: Style| {
        let (mut merge, mut now, mut out) = (Merge::new(style, start), start, Vec::new());
        for piece in [
            "P \r 1%",
            "P \r 2%\r 3%",
            "P  of 9\r",
            "P  4%",
            "F \r100%\r",
        ] {
            merge.add(part(0, &[&format!("T1 stderr {piece}")]), now);
            now += OPEN_WAIT;
            out.push(flush(&mut merge, now));
        }
        out
    };
    assert_eq!(
        shown(Style::default()).concat(),
        "\r 1%\r 2%\r 3% of 9\r 4%\r100%\r\n"
    );
    let screen = shown(Style {
        prefix: true,
        screen: true,
        ..Style::default()
    });
    let again = |text: &str| format!("\r\u{1b}[K[rank 0] {text}");
    assert_eq!(
        screen,
        [
            "[rank 0]  1%".to_owned(),
            again(" 3%"),
            " of 9".into(),
            again(" 4%"),
            again("100%") + "\n"
        ]
    );
}

#[test]
fn a_new_connection_goes_on_where_the_last_one_was() {
    let (mut merge, now) = (plain(), Instant::now());
    assert_eq!((merge.since(), merge.positions().len()), (None, 0));
    let response = |generation, rank, at, ended| LogsResponse {
        generation,
        rank,
        at,
        ended,
        ..LogsResponse::default()
    };
    for part in [
        response(1, 0, 10, false),
        response(1, 1, 7, false),
        response(1, 0, 30, true),
        response(2, 0, 5, true),
    ] {
        merge.add(part, now);
    }
    merge.add(
        LogsResponse {
            notice: "a word about the job".into(),
            ..LogsResponse::default()
        },
        now,
    );
    let positions: Vec<_> = merge
        .positions()
        .iter()
        .map(|p| (p.generation, p.rank, p.at, p.ended))
        .collect();
    assert_eq!(
        positions,
        [(1, 0, 30, true), (1, 1, 7, false), (2, 0, 5, true)]
    );
    assert_eq!(merge.since(), Some(1));
    merge.add(response(1, 1, 0, true), now);
    assert_eq!(
        merge.since(),
        Some(2),
        "a generation may not have all its ranks' logs yet"
    );
}

#[test]
fn launchers_are_told_apart_by_their_nodes() {
    let (mut merge, now) = (
        Merge::new(
            Style {
                prefix: true,
                launcher: true,
                ..Style::default()
            },
            Instant::now(),
        ),
        Instant::now(),
    );
    for node in ["n1", "n2"] {
        merge.add(
            LogsResponse {
                node: node.into(),
                ..part(0, &["T1 stdout P a"])
            },
            now,
        );
    }
    assert_eq!(finish(&mut merge, now), "[n1] a\n[n2] a\n");
    assert_eq!(merge.positions().len(), 2);
}

#[test]
fn a_pattern_is_searched_in_whole_lines() {
    let mut merge = with_prefix();
    merge.wanted = Wanted::new(0, None, Some("loss=nan$")).unwrap();
    let now = Instant::now();
    merge.add(
        part(
            2,
            &[
                "2026-11-21T11:35:28.000000001Z stdout F step=1 loss=0.5",
                "2026-11-21T11:35:28.000000002Z stdout P step=2 ",
            ],
        ),
        now,
    );
    assert_eq!(flush(&mut merge, now + OPEN_WAIT), "", "it may go on");
    assert_eq!(merge.due(), None);
    merge.add(
        part(2, &["2026-11-21T11:35:28.000000003Z stdout F loss=nan"]),
        now,
    );
    assert_eq!(
        flush(&mut merge, now + OPEN_WAIT),
        "[rank 2] step=2 loss=nan\n"
    );
    assert_eq!(finish(&mut merge, now), "");
}
