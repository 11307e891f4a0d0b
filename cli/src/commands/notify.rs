//! `muster notify`: who is told of what happens, and whether messages reach them.

use clap::{Args, Subcommand};
use muster_proto::v1::{CanIRequest, ListOpenRequest, ListReceiversRequest, TestReceiverRequest};

use super::get::print_list;
use crate::{connect::Client, context::Context, fail::Failure};

/// Show who is told of what happens, and try it out.
///
/// Who is told of what is in a file of the coordinator (--notify, docs/notifications.md).
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Do messages arrive, and what waits?
  muster notify list

  # Send one now
  muster notify test chat")]
pub(crate) struct Notify {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(List),
    Test(Test),
}

/// List who is told of what, what waits, and what could not be delivered.
///
/// WAITING is the number of messages that wait, most of them for some seconds; DELIVERED and FAILED count since the
/// coordinator started. A message that cannot be delivered is tried again for a day. OPEN TO JOBS is what a job may name
/// (muster run --notify); who may submit jobs and is no operator sees only that.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Do messages arrive?
  muster notify list

  # Whom may my job tell?
  muster notify list

  # Also what each is told of, and the last error
  muster notify list -o wide")]
struct List {}

/// Send a test message to a receiver, once, and show its answer.
///
/// Nothing else is sent, and no other receiver hears of it.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Does the chat of the team get messages?
  muster notify test chat")]
struct Test {
    /// Its name, as `muster notify list` shows it
    receiver: String,
}

pub(crate) async fn notify(cx: &Context, args: Notify) -> Result<(), Failure> {
    match args.command {
        Command::List(List {}) => list(cx).await,
        Command::Test(args) => test(cx, args).await,
    }
}

async fn list(cx: &Context) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let asked = CanIRequest {
        method: "NotificationService/ListReceivers".into(),
        namespace: String::new(),
    };
    let may = client.access().can_i(client.ask(asked)).await;
    if !may
        .map_err(|status| client.failure(status))?
        .into_inner()
        .allowed
    {
        return open(cx, &client).await;
    }
    let request = client.ask(ListReceiversRequest {});
    let answer = client.notifications().list_receivers(request).await;
    let receivers = answer
        .map_err(|status| client.failure(status))?
        .into_inner()
        .receivers;
    let nobody = "Nobody is told of anything: the coordinator was started without --notify (docs/notifications.md).";
    print_list(cx, receivers, false, nobody)
}

/// What a job may name, for those who may see no more.
async fn open(cx: &Context, client: &Client) -> Result<(), Failure> {
    let request = client.ask(ListOpenRequest {
        namespace: cx.namespace(),
    });
    let answer = client.notifications().list_open(request).await;
    let open = answer
        .map_err(|status| client.failure(status))?
        .into_inner()
        .open;
    let nothing = "A job can name nobody who is told of it: the operator has opened nothing to jobs (docs/notifications.md).";
    print_list(cx, open, false, nothing)
}

async fn test(cx: &Context, args: Test) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let name = args.receiver;
    let request = client.ask(TestReceiverRequest { name: name.clone() });
    let answer = client.notifications().test_receiver(request).await;
    let answer = answer
        .map_err(|status| client.failure(status))?
        .into_inner();
    if !answer.delivered {
        return Err(Failure::request(format!(
            "{name} has not taken the message: {}",
            answer.answer
        )));
    }
    cx.say(format!("{name} has taken the message ({}).", answer.answer));
    Ok(())
}
