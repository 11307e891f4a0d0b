//! What a job survives, and whether its generations bring it further, for `muster describe job`.

use muster_core::spec::RestartPolicyDocument;
use muster_proto::v1;

use super::words;

/// A restart policy in words.
pub(super) fn policy(policy: &RestartPolicyDocument) -> String {
    let window = policy.window.as_deref().unwrap_or("its window");
    let most = policy.max_restarts;
    let most = most.map_or_else(|| "its default".into(), |most| most.to_string());
    let same = match policy.max_same_failures {
        // 0, or an older coordinator.
        None | Some(0) => String::new(),
        Some(same) => format!(
            "; ends if the same failure comes {}",
            words::count(same.unsigned_abs(), "time")
        ),
    };
    format!("at most {most} in {window}{same}")
}

/// What is said if the newest generations have moved nothing beyond the best. Empty: nothing.
pub(super) fn in_vain(status: &v1::JobStatus) -> String {
    match status.generations_in_vain {
        0 | 1 => String::new(),
        generations => {
            let count = words::count(generations.into(), "generation");
            format!("none in the last {count}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_says_what_ends_the_job_sooner() {
        let of = |max_same_failures| {
            policy(&RestartPolicyDocument {
                max_restarts: Some(9),
                window: Some("1h".into()),
                max_same_failures,
            })
        };
        assert_eq!(of(None), "at most 9 in 1h");
        assert_eq!(of(Some(0)), "at most 9 in 1h");
        assert_eq!(
            of(Some(3)),
            "at most 9 in 1h; ends if the same failure comes 3 times"
        );
    }

    #[test]
    fn one_generation_without_progress_is_not_worth_a_line() {
        let of = |generations_in_vain| {
            in_vain(&v1::JobStatus {
                generations_in_vain,
                ..Default::default()
            })
        };
        assert_eq!(of(1), "");
        assert_eq!(of(4), "none in the last 4 generations");
    }
}
