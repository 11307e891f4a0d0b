//! Rank logs over the session.

use muster_core::run::RunPhase;
use muster_proto::v1::{
    LocateRanks, LogCancel, LogCredit, LogRead, SignalRanks, coordinator_message::Message as Down,
};

use crate::rig::{
    Coordinator, Node, Session,
    node::{run, stopped},
};

/// Prints numbered lines, then waits for a word from a fifo and prints it.
const CHATTY: &str = r#"i=0
while [ $i -lt 3000 ]; do i=$((i + 1)); echo "step $i of many, with a few words so that the chunks fill up"; done
mkfifo "$OUT/more"
read word < "$OUT/more"
echo "last $word"
exec sleep 1000000
"#;

async fn chatting() -> (Coordinator, Node, Session) {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.script("train.py", CHATTY);
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    session.desire(vec![node.running("job-a", 1)]).await;
    let id = run("job-a", 1);
    session
        .until("all steps", |s| {
            s.run(&id).is_some_and(|r| {
                r.ranks
                    .first()
                    .is_some_and(|rank| rank.last_step == Some(3_000))
            })
        })
        .await;
    (coordinator, node, session)
}

fn read(id: u64) -> LogRead {
    LogRead {
        id,
        job_uid: "job-a".into(),
        generation: 1,
        rank: 0,
        window: 64,
        ..LogRead::default()
    }
}

/// The text of a read's lines, without time and stream.
fn texts(session: &Session, id: u64) -> Vec<String> {
    let lines = session
        .chunks
        .iter()
        .filter(|chunk| chunk.id == id)
        .flat_map(|chunk| &chunk.lines);
    lines
        .map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned())
        .collect()
}

fn ended(session: &Session, id: u64) -> Option<&str> {
    session
        .chunks
        .iter()
        .find(|chunk| chunk.id == id && chunk.end)
        .map(|chunk| chunk.error.as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_follows_and_stops() {
    let (_coordinator, node, mut session) = chatting().await;
    session.say(Down::LogRead(read(1))).await;
    session
        .until("the end of read 1", |s| ended(s, 1).is_some())
        .await;
    let lines = texts(&session, 1);
    assert_eq!((lines.len(), ended(&session, 1)), (3_000, Some("")));
    assert!(lines[2_999].starts_with("step 3000 of many"));
    assert!(
        session.chunks.iter().filter(|chunk| chunk.id == 1).count() > 2,
        "in chunks"
    );

    session
        .say(Down::LogRead(LogRead {
            tail: Some(2),
            follow: true,
            ..read(2)
        }))
        .await;
    session.until("two lines", |s| texts(s, 2).len() == 2).await;
    std::fs::write(node.path("out/more"), "word\n").unwrap();
    session.until("a third", |s| texts(s, 2).len() == 3).await;
    assert_eq!(texts(&session, 2)[2], "last word");
    assert_eq!(ended(&session, 2), None);

    let seen = session
        .chunks
        .iter()
        .filter(|chunk| chunk.id == 1)
        .nth(1)
        .cloned()
        .expect("there are several");
    session
        .say(Down::LogRead(LogRead {
            from: Some(seen.at),
            ..read(3)
        }))
        .await;
    session
        .until("the end of read 3", |s| ended(s, 3).is_some())
        .await;
    let before: usize = session
        .chunks
        .iter()
        .filter(|chunk| chunk.id == 1)
        .take(2)
        .map(|chunk| chunk.lines.len())
        .sum();
    assert_eq!(
        texts(&session, 3)[..3_000 - before],
        lines[before..],
        "it goes on behind the second chunk"
    );

    session
        .say(Down::LogRead(LogRead {
            launcher: true,
            ..read(4)
        }))
        .await;
    session
        .until("the end of read 4", |s| ended(s, 4).is_some())
        .await;
    assert_eq!(
        ended(&session, 4),
        Some(""),
        "what starts the ranks has a log, too"
    );

    session
        .desire(vec![stopped("job-a", 1, std::time::Duration::ZERO)])
        .await;
    session
        .until("the end of read 2", |s| ended(s, 2).is_some())
        .await;
    assert_eq!(ended(&session, 2), Some(""));
}

/// A user who follows a job asks for the log as soon as the coordinator has stored the generation.
/// The order to start it may come later.
#[tokio::test(flavor = "multi_thread")]
async fn a_follow_that_comes_before_its_run_waits_for_it() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.script("train.py", "echo first; echo last");
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    session
        .say(Down::LogRead(LogRead {
            follow: true,
            ..read(1)
        }))
        .await;
    session
        .say(Down::LogRead(LogRead {
            follow: true,
            generation: 2,
            ..read(2)
        }))
        .await;
    session.settle().await;
    assert_eq!(ended(&session, 1), None, "it may still come");
    session.desire(vec![node.running("job-a", 1)]).await;
    session
        .until("the end of read 1", |s| ended(s, 1).is_some())
        .await;
    assert_eq!(
        (texts(&session, 1), ended(&session, 1)),
        (vec!["first".to_owned(), "last".to_owned()], Some(""))
    );
    session.say(Down::LogCancel(LogCancel { id: 2 })).await;
    session.settle().await;
    assert_eq!(ended(&session, 2), None, "who cancels knows why");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_waits_alone_and_may_give_up() {
    let (_coordinator, _node, mut session) = chatting().await;
    session
        .say(Down::LogRead(LogRead {
            window: 1,
            ..read(1)
        }))
        .await;
    session.until("one chunk", |s| s.chunks.len() == 1).await;
    session.settle().await;
    assert_eq!(
        session.chunks.len(),
        1,
        "no credit, no chunk; heartbeats go on"
    );
    session
        .say(Down::LogCredit(LogCredit { id: 1, chunks: 1 }))
        .await;
    session.until("another", |s| s.chunks.len() == 2).await;
    session.say(Down::LogCancel(LogCancel { id: 1 })).await;
    session
        .say(Down::LogCredit(LogCredit { id: 1, chunks: 9 }))
        .await;
    session.settle().await;
    assert_eq!(session.chunks.len(), 2);
    session
        .say(Down::LogRead(LogRead {
            tail: Some(1),
            ..read(1)
        }))
        .await;
    session
        .until("the id is free again", |s| ended(s, 1).is_some())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_says_why() {
    let (_coordinator, _node, mut session) = chatting().await;
    let cases = [
        (
            LogRead { rank: 7, ..read(1) },
            "rank-7.log is not there: nothing was started that would have written it",
        ),
        (
            LogRead {
                generation: 9,
                ..read(2)
            },
            "rank-0.log is not on this node",
        ),
        (
            LogRead {
                job_uid: "../../etc".into(),
                ..read(3)
            },
            "\"../../etc\" is not the uid of a job",
        ),
    ];
    for (wanted, why) in cases {
        let id = wanted.id;
        session.say(Down::LogRead(wanted)).await;
        session.until("an end", |s| ended(s, id).is_some()).await;
        assert_eq!(ended(&session, id), Some(why));
    }
    assert_eq!(session.phase(&run("job-a", 1)), Some(&RunPhase::Running));
}

/// Bytes that are no text, lines that do not end, and both streams.
const AWKWARD: &str = r#"trap 'echo got it; exit 0' USR1
printf 'one\r\n\377\376\000 two\r 50%%\r100%%\n'
printf 'err\300\n' >&2
printf 'caf\303'; sleep 0.4; printf '\251 and'; sleep 0.4; printf ' more\nno end'
echo step 7 >&2
while [ ! -e "$OUT/go" ]; do sleep 0.02; done
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_sent_byte_for_byte_and_a_signal_once() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.script("train.py", AWKWARD);
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    session.desire(vec![node.running("job-a", 1)]).await;
    let id = run("job-a", 1);
    session
        .until("step 7", |s| {
            let rank = s.run(&id).and_then(|r| r.ranks.first());
            rank.is_some_and(|rank| rank.last_step == Some(7))
        })
        .await;
    let locate = |id, job_uid: &str| {
        Down::LocateRanks(LocateRanks {
            id,
            job_uid: job_uid.into(),
            generation: 1,
            ranks: vec![0, 4],
        })
    };
    for (id, job) in [(1, "job-b"), (2, "job-a")] {
        session.say(locate(id, job)).await;
        session
            .until("an answer", |s| {
                s.located.iter().any(|answer| answer.id == id)
            })
            .await;
    }
    let [nowhere, located] = &session.located[..] else {
        panic!("{:?}", session.located)
    };
    assert_eq!(nowhere.error, "it does not run on this node now");
    let errors: Vec<&str> = { located.ranks.iter() }
        .map(|rank| rank.error.split(" (").next().unwrap())
        .collect();
    assert_eq!(
        errors,
        [
            "only ranks that Muster forks can be asked",
            "it has not started yet"
        ]
    );
    assert!(located.ranks[0].process.as_ref().unwrap().pid > 0);
    let signal = |id, job_uid: &str, ranks: &[u32]| {
        Down::SignalRanks(SignalRanks {
            id,
            job_uid: job_uid.into(),
            generation: 1,
            ranks: ranks.to_vec(),
            signal: 10,
        })
    };
    for (id, job, ranks, missed) in [
        (
            1,
            "../job-a",
            &[0][..],
            vec![(0, "\"../job-a\" is not the uid of a job")],
        ),
        (
            2,
            "job-b",
            &[0],
            vec![(0, "it does not run on this node now")],
        ),
        (3, "job-a", &[4], vec![(4, "rank 4 has not started yet")]),
        (4, "job-a", &[0], vec![]),
    ] {
        session.say(signal(id, job, ranks)).await;
        session
            .until("an answer", |s| {
                s.signalled.iter().any(|answer| answer.id == id)
            })
            .await;
        let answer = session.signalled.last().unwrap();
        let told: Vec<(u32, &str)> = { answer.missed.iter() }
            .map(|(rank, why)| (*rank, why.as_str()))
            .collect();
        assert_eq!(told, missed, "{job}");
    }
    session
        .until("its end", |s| s.run(&id).is_some_and(|r| r.phase.is_over()))
        .await;
    session
        .say(Down::LogRead(LogRead {
            raw: true,
            ..read(5)
        }))
        .await;
    session
        .until("the end of the read", |s| ended(s, 5).is_some())
        .await;
    let chunks = session.chunks.iter().filter(|chunk| chunk.id == 5);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    for line in chunks.flat_map(|chunk| &chunk.raw) {
        let parts: Vec<&[u8]> = line.splitn(4, |b| *b == b' ').collect();
        let stream = match parts[1] {
            b"stdout" => &mut out,
            _ => &mut err,
        };
        stream.extend_from_slice(parts[3]);
        if parts[2] == b"F" {
            stream.push(b'\n');
        }
    }
    let expected = b"one\r\n\xff\xfe\0 two\r 50%\r100%\ncaf\xc3\xa9 and more\nno endgot it\n";
    assert_eq!(out, expected, "{}", String::from_utf8_lossy(&out));
    assert_eq!(
        err,
        b"err\xc0\nstep 7\n",
        "{}",
        String::from_utf8_lossy(&err)
    );
    assert!(
        session
            .chunks
            .iter()
            .all(|chunk| chunk.id != 5 || chunk.lines.is_empty())
    );
}

/// A rank can put a FIFO into the folder of its logs. Each read waited in a thread for its other end.
#[tokio::test(flavor = "multi_thread")]
async fn a_fifo_in_the_place_of_a_log_is_waited_for_by_nobody() {
    let (_coordinator, node, mut session) = chatting().await;
    let logs = node.run_dir(&run("job-a", 1)).join("logs");
    for name in ["rank-0.log.5", "rank-1.log"] {
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mkfifoat(rustix::fs::CWD, logs.join(name), mode).unwrap();
    }
    session.say(Down::LogRead(read(1))).await;
    session
        .say(Down::LogRead(LogRead { rank: 1, ..read(2) }))
        .await;
    session
        .until("both ends", |s| {
            ended(s, 1).is_some() && ended(s, 2).is_some()
        })
        .await;
    assert_eq!(
        (texts(&session, 1).len(), ended(&session, 1)),
        (3_000, Some(""))
    );
    assert_eq!(
        ended(&session, 2),
        Some("rank-1.log: is not a regular file")
    );
}

/// The largest node has 256 ranks.
#[tokio::test(flavor = "multi_thread")]
async fn all_ranks_of_a_node_are_followed_and_nobody_is_locked_out() {
    let (_coordinator, _node, mut session) = chatting().await;
    for id in 1..=520 {
        session
            .say(Down::LogRead(LogRead {
                tail: Some(0),
                follow: true,
                ..read(id)
            }))
            .await;
    }
    session
        .until("an answer to each", |s| s.chunks.len() >= 520)
        .await;
    assert!((1..=520).all(|id| ended(&session, id).is_none()));
    session.say(Down::LogRead(read(521))).await;
    session
        .until("a refusal", |s| ended(s, 521).is_some())
        .await;
    let refusal = ended(&session, 521).unwrap_or_default();
    assert!(
        refusal.contains("no job has more readers than this one"),
        "{refusal}"
    );
    session
        .say(Down::LogRead(LogRead {
            job_uid: "job-b".into(),
            ..read(522)
        }))
        .await;
    session
        .until("the other job's answer", |s| {
            ended(s, 522).is_some() && ended(s, 520).is_some()
        })
        .await;
    assert_eq!(ended(&session, 522), Some("rank-0.log is not on this node"));
    let moved = ended(&session, 520).unwrap_or_default();
    assert!(
        moved.contains("another job's reader needs a place"),
        "{moved}"
    );
    assert!((1..520).all(|id| ended(&session, id).is_none()));
}
