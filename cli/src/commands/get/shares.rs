//! `muster get shares`

use muster_proto::v1::ListQueuesRequest;

use super::{Get, queues};
use crate::{
    args::Format,
    context::Context,
    fail::Failure,
    output::{self, List, shares, table::Table},
};

const KINDS: [&str; 2] = ["share", "shares"];

/// Whether shares are asked for. They have no names.
pub(super) fn asked(words: &[String]) -> Result<bool, Failure> {
    let kind = words.first().map(|word| word.to_ascii_lowercase());
    let kind = kind.unwrap_or_default();
    let (kind, has_name) = match kind.split_once('/') {
        Some((kind, _)) => (kind, true),
        None => (kind.as_str(), words.len() > 1),
    };
    match KINDS.contains(&kind) {
        true if has_name => Err(Failure::usage(
            "shares have no names: muster get shares shows all, and -o json has them for other programs",
        )),
        found => Ok(found),
    }
}

pub(super) async fn get(cx: &Context, args: &Get) -> Result<(), Failure> {
    let choice = &args.choice;
    if args.list.watch || args.all || choice.selector.is_some() || choice.sort_by.is_some() {
        return Err(Failure::usage(
            "shares are shown as they are now and in the order of queues or namespaces: -w, --all, -l and --sort-by are for other kinds",
        ));
    }
    let client = cx.connect().await?;
    let request = ListQueuesRequest {
        shares: true,
        ..ListQueuesRequest::default()
    };
    let answer = queues::list(&client, request).await;
    let fair_share = answer.map_err(|status| client.failure(status))?.fair_share;
    let shown = fair_share.as_ref().map_or(Vec::new(), shares::all);
    match cx.format() {
        Format::Json => cx.print(&output::json(&List::new(shown))),
        Format::Yaml => cx.print(&output::yaml(&List::new(shown))),
        Format::Name => Err(Failure::usage("shares have no names: use -o json")),
        Format::Table | Format::Wide if shown.is_empty() => {
            cx.say(match fair_share {
                Some(_) => "There are no shares that you may see yet.",
                None => {
                    "Jobs of equal priority go by age (muster-coordinator --fair-share-half-life 7d makes it fair shares)."
                }
            });
            Ok(())
        }
        Format::Table | Format::Wide => {
            let rows: Vec<Vec<String>> = shown.iter().map(shares::Shown::row).collect();
            cx.print(&Table::new(shares::HEADS.to_vec()).render(&rows, !cx.globals.no_headers))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_no_names() {
        let asked = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            asked(&words).ok()
        };
        assert_eq!(asked(&["shares"]), Some(true));
        assert_eq!(asked(&["Share"]), Some(true));
        assert_eq!(asked(&["share", "a"]), None);
        assert_eq!(asked(&["shares/a"]), None);
        assert_eq!(asked(&["job", "shares"]), Some(false));
    }
}
