//! A signal that somebody sends to a rank: it comes to the rank's own process and to none below it.
#![allow(clippy::unwrap_used)]

mod rig;

use muster_runner::wire::{Command, Exit, RefusalKind, Status};
use rig::Rig;
use rustix::process::Signal;

/// A rank with a child. Both say so when they get SIGUSR1, the child before it counts on.
const WITH_CHILD: &str = "\
(trap 'echo the child has it' USR1; while :; do echo the child counts; sleep 0.02; done) &
trap 'echo the rank has it' USR1
trap 'kill $!; exit 7' TERM
while :; do echo step 1; sleep 0.02; done";

fn signal(rank: u32, signal: Signal) -> Command {
    Command::Signal {
        rank,
        signal: signal.as_raw(),
    }
}

fn ended(status: &Status, rank: u32) -> Option<Exit> {
    status.ranks.iter().find(|r| r.rank == rank)?.exit
}

#[test]
fn a_signal_comes_to_the_rank_and_to_nothing_else() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let refusal = client.refused(signal(0, Signal::USR1));
    assert_eq!(refusal.kind, RefusalKind::Conflict);
    assert_eq!(refusal.text, "rank 0 has not started yet");
    client.start(rig.ranks(2, WITH_CHILD));
    client.until_stepping(2);
    let heard = |rig: &Rig, rank: u32| {
        rig.log(&format!("rank-{rank}.log"))
            .contains("the rank has it")
    };
    let counted = |rig: &Rig| rig.log("rank-1.log").matches("the child counts").count();
    while counted(&rig) == 0 {
        client.status();
    }
    client.ok(signal(1, Signal::USR1));
    while !heard(&rig, 1) {
        client.status();
    }
    // The trap of a shell waits for its sleep. A child that was signalled says so before the second
    // line from now.
    let so_far = counted(&rig);
    while counted(&rig) < so_far + 2 {
        client.status();
    }
    assert!(!heard(&rig, 0), "the other rank");
    assert!(!rig.log("rank-1.log").contains("the child has it"));

    // A rank that ends from it has ended like any other.
    client.ok(signal(0, Signal::TERM));
    let status = client.until(|status| ended(status, 0).is_some());
    assert_eq!(ended(&status, 0), Some(Exit::Code { code: 7 }));
    let refusal = client.refused(signal(0, Signal::USR1));
    assert_eq!(refusal.text, "rank 0 has ended");
    let refusal = client.refused(Command::Signal {
        rank: 1,
        signal: 4711,
    });
    assert_eq!(refusal.kind, RefusalKind::Invalid);
    client.stop(std::time::Duration::ZERO);
    client.until_dead();
}
