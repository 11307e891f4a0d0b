//! `muster signal`

use clap::Args;
use muster_core::signal;
use muster_proto::v1::{SignalRequest, SignalResponse};

use crate::{connect::job_ref, context::Context, fail::Failure, output::words::count};

/// Send a signal to the ranks of a running job.
///
/// The signal goes to the process of each rank, and not to what it has started. It is sent now or
/// never: ranks of a later generation get none. What it does is the rank's own affair. A rank without
/// a handler for it ends, as a rule, which counts as a failure of the job.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Have rank 0 write a checkpoint, if the script does that at SIGUSR1
  muster signal digits --rank 0 USR1

  # Have all ranks print their stacks (faulthandler.register(signal.SIGUSR2) in the script)
  muster signal digits USR2

  # Hold the ranks of one node, and let them go on
  muster signal digits --node node-2 STOP
  muster signal digits --node node-2 CONT")]
pub(crate) struct Signal {
    /// Name of the job
    job: String,

    /// The signal, as USR1, SIGUSR1 or 10
    #[arg(value_name = "SIGNAL", value_parser = read)]
    signal: i32,

    /// Only this global rank [default: all]
    #[arg(short, long)]
    rank: Option<u32>,

    /// Only ranks on this node
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

/// Stands in the reason of a rank of which nobody knows whether it has got the signal. The coordinator
/// and the agent write it.
const NOT_KNOWN: &str = "it is not known whether";

fn read(text: &str) -> Result<i32, String> {
    signal::read(text)
}

pub(crate) async fn signal(cx: &Context, args: Signal) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let named = job_ref(cx.namespace(), &args.job);
    let name = named.name.clone();
    let request = client.ask(SignalRequest {
        r#ref: Some(named),
        signal: args.signal.to_string(),
        rank: args.rank,
        node: args.node.clone().unwrap_or_default(),
    });
    let answer = client.jobs().signal(request).await;
    let answer = answer
        .map_err(|status| client.failure(status))?
        .into_inner();
    let (sent, missed) = told(&name, args.signal, &answer);
    if let Some(sent) = sent {
        cx.print(&format!("{sent}\n"))?;
        if let Some(warning) = signal::warning(args.signal) {
            cx.say(format!("Note: {warning}"));
        }
    }
    match missed.is_empty() {
        true => Ok(()),
        false => Err(Failure::request(missed.join("\nerror: "))),
    }
}

/// Who got the signal, and who did not or may not have got it, with the reason.
fn told(job: &str, signal: i32, answer: &SignalResponse) -> (Option<String>, Vec<String>) {
    let signal = signal::name(signal);
    let (missed, got): (Vec<_>, Vec<_>) =
        { answer.ranks.iter() }.partition(|told| !told.error.is_empty());
    let sent = match got[..] {
        [] => None,
        [one] => Some(format!(
            "job/{job}: {signal} sent to rank {} on {}",
            one.rank, one.node
        )),
        _ => Some(format!(
            "job/{job}: {signal} sent to {}",
            count(got.len() as u64, "rank")
        )),
    };
    // Ranks of one node mostly have one reason.
    let mut reasons: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for told in missed {
        let (node, error, rank) = (&*told.node, &*told.error, told.rank.to_string());
        match reasons
            .iter_mut()
            .find(|known| (known.0, known.1) == (node, error))
        {
            Some(known) => known.2.push(rank),
            None => reasons.push((node, error, vec![rank])),
        }
    }
    let missed = reasons.into_iter().map(|(node, error, ranks)| {
        let s = if ranks.len() == 1 { "" } else { "s" };
        let known = match error.contains(NOT_KNOWN) {
            true => "",
            false => "not sent: ",
        };
        format!("rank{s} {} on {node}: {known}{error}", ranks.join(", "))
    });
    (sent, missed.collect())
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::SignalledRank;

    use super::*;

    #[test]
    fn who_got_it_and_who_did_not() {
        let rank = |rank: u32, node: &str, error: &str| SignalledRank {
            rank,
            node: node.into(),
            error: error.into(),
        };
        let answer = |ranks: &[SignalledRank]| SignalResponse {
            generation: 3,
            ranks: ranks.to_vec(),
        };
        let one = told("digits", 10, &answer(&[rank(1, "n1", "")]));
        assert_eq!(one.0.unwrap(), "job/digits: SIGUSR1 sent to rank 1 on n1");
        let some = answer(&[
            rank(0, "n1", ""),
            rank(1, "n1", ""),
            rank(2, "n2", "n2 is not connected"),
            rank(3, "n2", "n2 is not connected"),
            rank(4, "n1", "rank 4 has ended"),
            rank(
                5,
                "n3",
                "the session of n3 ended, so it is not known whether the signal was sent",
            ),
        ]);
        let (sent, missed) = told("digits", 40, &some);
        assert_eq!(sent.unwrap(), "job/digits: 40 sent to 2 ranks");
        assert_eq!(
            missed,
            [
                "ranks 2, 3 on n2: not sent: n2 is not connected",
                "rank 4 on n1: not sent: rank 4 has ended",
                "rank 5 on n3: the session of n3 ended, so it is not known whether the signal was sent",
            ]
        );
        let none = told("digits", 10, &answer(&[rank(0, "n1", "x")]));
        assert_eq!((none.0, none.1.len()), (None, 1));
    }
}
