//! `muster get queues`

use muster_proto::v1::{ListQueuesRequest, ListQueuesResponse};
use tonic::Status;

use super::{super::queue::NO_STARTS, Get};
use crate::{
    args::Format,
    connect::Client,
    context::Context,
    fail::Failure,
    output::{self, List, queues, table::Table},
};

const KINDS: [&str; 2] = ["queue", "queues"];

/// Whether queues are asked for, and which one. Words of another kind are nobody's mistake.
pub(super) fn asked(words: &[String]) -> Option<Option<&str>> {
    let (kind, name) = match words {
        [only] => match only.split_once('/') {
            Some((kind, name)) => (kind, Some(name)),
            None => (only.as_str(), None),
        },
        [kind, name] => (kind.as_str(), Some(name.as_str())),
        _ => return None,
    };
    let kind = kind.to_ascii_lowercase();
    KINDS.contains(&kind.as_str()).then_some(name)
}

/// All queues, and what else the request asks for.
pub(crate) async fn list(
    client: &Client,
    request: ListQueuesRequest,
) -> Result<ListQueuesResponse, Status> {
    let request = client.ask(request);
    Ok(client.queues().list(request).await?.into_inner())
}

/// What a list of those that wait needs: the queues, the order, and when each will start. Estimates alone may be asked for too often, and the list
/// is of use without all of it. So what is missing is said, and it is no failure.
pub(crate) async fn of_waiting(
    client: &Client,
    estimates: bool,
) -> (ListQueuesResponse, Option<String>) {
    let ask = |start_estimates| ListQueuesRequest {
        start_estimates,
        order: true,
        ..ListQueuesRequest::default()
    };
    match list(client, ask(estimates)).await {
        Ok(answer) => (answer, None),
        Err(status) => {
            let missing = format!("{NO_STARTS}: {}", client.failure(status));
            match list(client, ask(false)).await {
                Ok(answer) => (answer, Some(missing)),
                Err(_) => {
                    let missing = format!("{missing}; the order is that of priority and age");
                    (ListQueuesResponse::default(), Some(missing))
                }
            }
        }
    }
}

pub(super) async fn get(cx: &Context, args: &Get, name: Option<&str>) -> Result<(), Failure> {
    let choice = &args.choice;
    if args.list.watch || args.all || choice.selector.is_some() || choice.sort_by.is_some() {
        return Err(Failure::usage(
            "queues are shown as they are now and in the order of the tree: -w, --all, -l and --sort-by are for other kinds",
        ));
    }
    let client = cx.connect().await?;
    let all = list(&client, ListQueuesRequest::default()).await;
    let all = all.map_err(|status| client.failure(status))?.queues;
    let mut shown = queues::all(&all);
    shown.retain(|queue| name.is_none_or(|name| queue.name == name));
    if let Some(name) = name.filter(|_| shown.is_empty()) {
        return Err(Failure::Request(format!(
            "there is no queue {name}: muster get queues shows all"
        )));
    }
    match cx.format() {
        Format::Json => cx.print(&output::json(&List::new(shown))),
        Format::Yaml => cx.print(&output::yaml(&List::new(shown))),
        Format::Name => {
            let names = shown.iter().map(|queue| format!("queue/{}\n", queue.name));
            cx.print(&names.collect::<String>())
        }
        Format::Table | Format::Wide if shown.is_empty() => {
            cx.say("There are no queues (muster-coordinator --queues FILE makes them).");
            Ok(())
        }
        Format::Table | Format::Wide => {
            let wide = cx.format() == Format::Wide;
            let rows: Vec<Vec<String>> = shown.iter().map(|queue| queue.row(wide)).collect();
            cx.print(&Table::new(queues::heads(wide)).render(&rows, !cx.globals.no_headers))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_asked_for_as_other_kinds_are() {
        let asked = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            asked(&words).map(|name| name.map(str::to_owned))
        };
        assert_eq!(asked(&["queues"]), Some(None));
        assert_eq!(asked(&["Queue", "a"]), Some(Some("a".into())));
        assert_eq!(asked(&["queue/a"]), Some(Some("a".into())));
        assert_eq!(asked(&["jobs"]), None);
        assert_eq!(asked(&["job", "queues"]), None);
    }
}
