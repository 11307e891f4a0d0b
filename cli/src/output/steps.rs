//! The step of a job in words: how far it is, how long it will take, and what to do if no step was
//! recognised.

use std::time::Duration;

use muster_proto::v1;

use super::words;

/// One sentence for `describe job`. Empty: there is nothing to say yet.
pub(crate) fn step(job: &str, status: &v1::JobStatus) -> String {
    let Some(step) = status.last_step else {
        return unseen(job, status);
    };
    let mut text = step.to_string();
    if let Some(total) = status.total_steps.filter(|total| *total > 0) {
        text += &format!(
            " of {total} ({} %)",
            u128::from(step) * 100 / u128::from(total)
        );
    }
    if let Some(each) = status.step_time_us.map(Duration::from_micros) {
        text += &format!(", {} a step", seconds(each));
        let left = status.total_steps.and_then(|total| total.checked_sub(step));
        if let Some(left) = left.filter(|left| *left > 0 && status.finished_unix_us == 0) {
            let left = each.saturating_mul(u32::try_from(left).unwrap_or(u32::MAX));
            let left = u64::try_from(left.as_micros()).unwrap_or(u64::MAX - 1);
            text += &format!(", about {} to go", words::age(1, left.saturating_add(1)));
        }
    }
    if !status.loss.is_empty() {
        text += &format!(", loss {}", status.loss);
    }
    if !status.rate.is_empty() {
        text += &format!(", printed rate {}", status.rate);
    }
    if !status.step_format.is_empty() {
        text += &format!(" (format {})", status.step_format);
    }
    text
}

/// When a checkpoint was last saved.
pub(crate) fn saved(status: &v1::JobStatus, now_us: u64) -> String {
    match status.saved_unix_us {
        0 => "nothing yet in this generation".into(),
        at => format!("{} ago", words::age(at, now_us)),
    }
}

/// `1.66s`, `12ms`.
fn seconds(time: Duration) -> String {
    match time.as_millis() {
        0 => format!("{}us", time.as_micros()),
        1..1_000 => format!("{}ms", time.as_millis()),
        _ => format!("{:.2}s", time.as_secs_f64()),
    }
}

fn unseen(job: &str, status: &v1::JobStatus) -> String {
    match status.stepless_lines {
        None => String::new(),
        Some(0) => "none yet: the ranks have printed no line".into(),
        Some(lines) => format!(
            "none recognised in {} lines; print \"step N\", or set stepPattern, as in stepPattern: 'update (\\d+)'; \
             \"muster logs {job} --steps\" shows the lines",
            thousands(lines)
        ),
    }
}

/// `12,000`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_and_how_long() {
        let mut status = v1::JobStatus {
            last_step: Some(12),
            ..Default::default()
        };
        assert_eq!(step("digits", &status), "12");
        status.total_steps = Some(100);
        status.step_time_us = Some(1_660_000);
        status.loss = "3.903".into();
        status.rate = "9,800 tok/s".into();
        status.step_format = "tqdm".into();
        assert_eq!(
            step("digits", &status),
            "12 of 100 (12 %), 1.66s a step, about 2m26s to go, loss 3.903, printed rate 9,800 tok/s (format tqdm)"
        );
    }

    #[test]
    fn what_to_do_if_no_step_was_recognised() {
        let status = |stepless_lines| v1::JobStatus {
            stepless_lines,
            ..Default::default()
        };
        assert_eq!(step("digits", &status(None)), "");
        assert_eq!(
            step("digits", &status(Some(3_000))),
            "none recognised in 3,000 lines; print \"step N\", or set stepPattern, as in stepPattern: 'update (\\d+)'; \
             \"muster logs digits --steps\" shows the lines"
        );
    }
}
