//! Where the time of a job has gone, as a short table: one row for each state, with what it was spent on.

use muster_page::account::{self, On, Row};
use muster_proto::v1;

use super::words::{self, percent, span};

pub(super) const HEADS: [&str; 5] = ["STATE", "TIME", "SHARE", "GPU TIME", "OF IT"];

/// How many causes or reasons a row names.
const NAMED: usize = 3;

/// `97.2 % of the time since the first generation was decided`, or nothing if there is none yet.
pub(super) fn goodput(account: &v1::TimeAccount) -> String {
    account.goodput.map_or_else(String::new, |part| {
        format!(
            "{} of the time since its first generation was decided",
            percent(part)
        )
    })
}

/// Says so if time was not counted from the submission on.
pub(super) fn since(account: &v1::TimeAccount, created_unix_us: u64) -> String {
    match account.since_unix_us > created_unix_us {
        true => format!(
            "not counted before {}",
            words::utc_seconds(account.since_unix_us)
        ),
        false => String::new(),
    }
}

/// One row for each state, the longest first.
pub(super) fn rows(account: &v1::TimeAccount) -> Vec<Vec<String>> {
    let cells = |row: Row<'_>| {
        vec![
            row.state.to_owned(),
            row.time(),
            row.share(),
            row.gpu_time(),
            parts(&row.on),
        ]
    };
    account::by_state(account).into_iter().map(cells).collect()
}

/// `NodeLost 12.001s (launch 7.000s), WorkerFailed 3.000s (join 2.000s)`: each cause or reason, with its longest
/// phase.
fn parts(on: &[On<'_>]) -> String {
    let named = on.iter().take(NAMED).map(|on| {
        let longest = on
            .longest
            .map(|(phase, us)| format!(" ({phase} {})", span(us)));
        format!("{} {}{}", on.name, span(on.us), longest.unwrap_or_default())
    });
    let more = on.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| format!("{more} more"));
    named.chain(more).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The account of a job that lost a node and is training again.
    pub(crate) fn account(since_unix_us: u64) -> v1::TimeAccount {
        let spent = |state: &str, cause: &str, phase: &str, reason: &str, ms: u64| v1::TimeSpent {
            state: state.into(),
            cause: cause.into(),
            phase: phase.into(),
            reason: reason.into(),
            us: ms * 1_000,
            gpu_us: if state == "queued" { 0 } else { 8_000 * ms },
        };
        v1::TimeAccount {
            since_unix_us,
            spent: vec![
                spent("queued", "", "", "", 415),
                spent("starting", "FirstStart", "launch", "", 7_681),
                spent("starting", "FirstStart", "join", "", 2_000),
                spent("training", "", "", "", 175_412),
                spent("recovering", "NodeLost", "detect", "", 1_988),
                spent("recovering", "NodeLost", "launch", "", 4_862),
                spent("recovering", "NodeLost", "join", "", 6_948),
                spent("repeating", "NodeLost", "", "", 694),
            ],
            goodput: Some(175_412.0 / 199_585.0),
        }
    }

    #[test]
    fn the_longest_state_comes_first_and_says_what_it_was() {
        let rows = rows(&account(1));
        let states: Vec<&str> = rows.iter().map(|row| &*row[0]).collect();
        let order = ["training", "recovering", "starting", "repeating", "queued"];
        assert_eq!(states, order);
        let (recovering, queued) = (rows[1].join(" | "), rows[4].join(" | "));
        let told = "recovering | 13.7s | 6.8 % | 110.3s | NodeLost 13.7s (join 6.9s)";
        assert_eq!(recovering, told);
        assert_eq!(queued, "queued | 415ms | 0.2 % |  | ");
    }

    #[test]
    fn a_row_with_many_causes_names_the_longest() {
        let causes = [
            "WorkerFailed",
            "NodeLost",
            "PeersLost",
            "Fenced",
            "StartFailed",
        ];
        let spent = (1..).zip(causes).map(|(seconds, cause)| v1::TimeSpent {
            state: "recovering".into(),
            cause: cause.into(),
            us: seconds * 1_000_000,
            ..v1::TimeSpent::default()
        });
        let account = v1::TimeAccount {
            since_unix_us: 5_000_000,
            spent: spent.collect(),
            goodput: None,
        };
        let of_it = "StartFailed 5.0s, Fenced 4.0s, PeersLost 3.0s, 2 more";
        assert_eq!(rows(&account)[0][4], of_it);
        assert_eq!(goodput(&account), "");
        assert_eq!(since(&account, 5_000_000), "");
        let later = "not counted before 1970-01-01T00:00:05Z";
        assert_eq!(since(&account, 4_000_000), later);
    }

    #[test]
    fn nothing_is_rounded_up_to_all() {
        assert_eq!(percent(0.99999), "99.9 %");
        assert_eq!(percent(1.0), "100.0 %");
        let spans = [
            0,
            999_999,
            1_250_000,
            119_999_999,
            120_000_000,
            7_200_000_000,
        ];
        let texts = spans.map(span).join(" ");
        assert_eq!(texts, "0ms 999ms 1.2s 119.9s 2m 120m");
    }
}
