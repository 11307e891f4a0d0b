use super::*;

const TORCH: &str = "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py";

fn frame(file: &str, line: u32, function: &str) -> Frame {
    Frame {
        file: file.into(),
        line,
        function: function.into(),
    }
}

fn rank(number: u32, frames: Vec<Frame>, positions: Vec<Position>) -> RankStack {
    RankStack {
        rank: number,
        node: NodeName::from("n1"),
        threads: vec![frames],
        positions,
        process: None,
        error: None,
    }
}

fn at(group: &str, called: u64, completed: u64) -> Position {
    Position {
        group: group.into(),
        called,
        completed,
        call: (called > completed).then(|| "all_reduce".into()),
        waiting: (called > completed).then(|| Duration::from_secs(called)),
        ..Position::default()
    }
}

/// In `all_reduce` of line 88.
fn reducing(number: u32, called: u64, completed: u64) -> RankStack {
    let frames = vec![
        frame(TORCH, 2810, "all_reduce"),
        frame("/train/train.py", 88, "<module>"),
    ];
    rank(number, frames, vec![at("0", called, completed)])
}

fn loading(number: u32, completed: u64) -> RankStack {
    let frames = vec![
        frame("/train/data.py", 41, "load_batch"),
        frame("/train/train.py", 80, "<module>"),
    ];
    rank(number, frames, vec![at("0", completed, completed)])
}

#[test]
fn seven_wait_for_one() {
    let ranks: Vec<RankStack> = (0..8)
        .map(|n| match n {
            3 => loading(3, 811),
            n => reducing(n, 812, 811),
        })
        .collect();
    let together = together(&ranks);
    let shown: Vec<(Vec<u32>, String)> = { together.iter() }
        .map(|group| (group.ranks.clone(), group.place.to_string()))
        .collect();
    assert_eq!(
        shown,
        [
            (
                vec![0, 1, 2, 4, 5, 6, 7],
                "all_reduce at train.py:88".to_owned()
            ),
            (vec![3], "load_batch at data.py:41".to_owned()),
        ]
    );
    let [wait] = &waits(&ranks)[..] else {
        panic!("one group")
    };
    assert_eq!((wait.sequence, wait.completed), (812, 811));
    assert_eq!((wait.behind.as_slice(), wait.waiting.len()), (&[3][..], 7));
    assert_eq!(wait.call.as_deref(), Some("all_reduce"));
    assert_eq!(wait.waited, Some(Duration::from_secs(812)));
}

#[test]
fn the_least_of_those_that_wait_for_nobody_is_behind() {
    // Rank 1 has left the loop early, rank 2 has not come as far as rank 3.
    let ranks = [
        reducing(0, 9, 8),
        loading(1, 9),
        loading(2, 5),
        loading(3, 7),
        reducing(4, 9, 8),
    ];
    let [wait] = &waits(&ranks)[..] else {
        panic!("one group")
    };
    assert_eq!((wait.behind.as_slice(), wait.completed), (&[2][..], 5));
    assert_eq!(wait.waiting, [0, 4]);
    let all_wait = [reducing(0, 9, 8), reducing(1, 9, 8), loading(2, 9)];
    let wait = &waits(&all_wait)[0];
    assert!(wait.behind.is_empty() && wait.silent.is_empty(), "{wait:?}");
    assert_eq!(waits(&[loading(0, 9), loading(1, 3)]), [], "nobody waits");
}

#[test]
fn groups_are_judged_by_themselves_and_named_in_order() {
    let of = |number, positions| RankStack {
        positions,
        ..loading(number, 0)
    };
    let ranks = [
        of(0, vec![at("10", 3, 2), at("9", 1, 1)]),
        of(1, vec![at("10", 2, 2), at("9", 2, 1)]),
    ];
    let waits = waits(&ranks);
    let shown: Vec<(&str, &[u32])> = { waits.iter() }
        .map(|wait| (wait.group.as_str(), wait.behind.as_slice()))
        .collect();
    assert_eq!(shown, [("9", &[0][..]), ("10", &[1][..])]);
}

#[test]
fn a_member_that_says_nothing_is_named() {
    let silent = RankStack {
        positions: Vec::new(),
        ..loading(1, 0)
    };
    let of = |ranks: &[u32], description: &str| {
        let mut rank = reducing(0, 4, 3);
        rank.positions[0].ranks = ranks.to_vec();
        rank.positions[0].description = description.into();
        waits(&[rank, silent.clone()])[0].silent.clone()
    };
    assert_eq!(of(&[0, 1], ""), [1]);
    assert!(of(&[0, 2], "").is_empty(), "it is no member");
    // gloo does not say who the members are. All ranks are in the default group.
    assert_eq!(of(&[], "default_pg"), [1]);
    assert!(of(&[], "undefined").is_empty());
}

#[test]
fn the_jobs_own_line_is_found_below_libraries() {
    let own = |frames: &[(&str, u32, &str)]| {
        let frames = { frames.iter() }.map(|(file, line, f)| frame(file, *line, f));
        place(&rank(0, frames.collect(), Vec::new())).to_string()
    };
    assert_eq!(
        own(&[
            ("/usr/lib/python3.12/selectors.py", 415, "select"),
            (
                "/usr/lib/python3.12/multiprocessing/connection.py",
                9,
                "wait"
            ),
            ("<frozen runpy>", 88, "_run_code"),
            ("/home/ann/lib/train.py", 5, "main"),
        ]),
        "select at train.py:5"
    );
    assert_eq!(
        own(&[(
            "/opt/conda/lib/python3.11/site-packages/trl/sft.py",
            7,
            "main"
        )]),
        "main at sft.py:7",
        "only libraries"
    );
    assert_eq!(
        own(&[
            ("/work/python3.12/train.py", 7, "step"),
            ("/work/main.py", 9, "<module>"),
        ]),
        "step at train.py:7",
        "no library's folder"
    );
}

#[test]
fn a_process_without_stack_is_described() {
    let of = |state: &str, cpu_ms: u64, children: u32, error: Option<&str>| {
        let process = Process {
            pid: 7,
            state: state.into(),
            wchan: "futex_wait".into(),
            cpu: Duration::from_millis(cpu_ms),
            over: Duration::from_millis(200),
            threads: 3,
            children,
        };
        let rank = RankStack {
            threads: Vec::new(),
            process: Some(process),
            error: error.map(str::to_owned),
            ..loading(0, 0)
        };
        place(&rank).to_string()
    };
    assert_eq!(
        of("T", 0, 0, Some("it is stopped, so it cannot answer")),
        "stopped by a signal (state T); it is stopped, so it cannot answer"
    );
    assert_eq!(
        of("S", 0, 2, None),
        "sleeps (state S, in futex_wait), has 2 children"
    );
    assert_eq!(of("R", 190, 1, None), "works (state R), has 1 child");
    assert_eq!(
        of("D", 0, 0, None),
        "waits in the kernel for a device or a disk (state D, in futex_wait)"
    );
    let gone = RankStack {
        threads: Vec::new(),
        error: Some("n1 is not connected".into()),
        ..loading(0, 0)
    };
    assert_eq!(place(&gone).to_string(), "n1 is not connected");
}
