//! Messages as text and as JSON. The form of a webhook is described in `docs/notifications.md`.

use jiff::Timestamp as Moment;
use muster_core::{
    fleet::notify::{Kind, Message, Notice},
    time::Timestamp,
};
use serde_json::{Value, json};

use super::receiver::Form;

/// Changes when a field goes or means something else.
const VERSION: u32 = 1;

/// Subjects in a title of several.
const NAMED: usize = 3;

/// The body of a request. `dropped`: notices that this receiver will never get.
pub(super) fn of(form: Form, cluster: &str, message: &Message, dropped: u64) -> Vec<u8> {
    let body = match form {
        Form::Webhook => webhook(cluster, message, dropped),
        Form::Slack => json!({ "text": escaped(&text(cluster, message, dropped)) }),
        Form::Alertmanager => alerts(cluster, message),
    };
    body.to_string().into_bytes()
}

fn webhook(cluster: &str, message: &Message, dropped: u64) -> Value {
    let notices: Vec<Value> = message.notices.iter().map(notice).collect();
    json!({
        "version": VERSION,
        "id": message.id(),
        "cluster": cluster,
        "kind": message.kind.word(),
        "severity": severity(message.kind),
        "at": moment(message.first),
        "title": title(cluster, message),
        "text": text(cluster, message, dropped),
        "count": message.count,
        "dropped": dropped,
        "notices": notices,
    })
}

fn notice(notice: &Notice) -> Value {
    let job = notice.job.as_ref();
    json!({
        "at": moment(notice.at),
        "namespace": job.map(|job| job.namespace.as_str()),
        "job": job.map(|job| job.name.as_str()),
        "uid": notice.uid.as_ref().map(ToString::to_string),
        "generation": notice.generation.map(|number| number.0),
        "node": notice.node.as_ref().map(ToString::to_string),
        "message": notice.message,
        "culprit": notice.culprit,
        "cause": notice.cause,
        "error": notice.error,
    })
}

/// One alert for each notice. Alertmanager resolves them by itself after its `resolve_timeout`.
fn alerts(cluster: &str, message: &Message) -> Value {
    let mut alerts: Vec<Value> = message
        .notices
        .iter()
        .map(|one| alert(cluster, one))
        .collect();
    let more = u64::from(message.count).saturating_sub(message.notices.len() as u64);
    if more > 0 {
        let summary = format!("{more} more {}", message.kind.of_several());
        let mut last = Notice::new(message.kind, message.first, &summary);
        last.cause = Some("More".into());
        alerts.push(alert(cluster, &last));
    }
    Value::Array(alerts)
}

fn alert(cluster: &str, notice: &Notice) -> Value {
    let word = notice.kind.word();
    let (first, rest) = word.split_at(1);
    let job = notice.job.as_ref();
    let labels = [
        (
            "alertname",
            Some(format!("Muster{}{rest}", first.to_uppercase())),
        ),
        ("severity", Some(severity(notice.kind).to_owned())),
        (
            "cluster",
            Some(cluster.to_owned()).filter(|it| !it.is_empty()),
        ),
        ("job_namespace", job.map(|job| job.namespace.clone())),
        ("job_name", job.map(|job| job.name.clone())),
        ("node", notice.node.as_ref().map(ToString::to_string)),
        ("cause", notice.cause.clone()),
    ];
    let labels: serde_json::Map<String, Value> = labels
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), Value::String(value?))))
        .collect();
    json!({
        "labels": labels,
        "annotations": { "summary": notice.message, "description": details(notice).join("\n") },
        "startsAt": moment(notice.at),
    })
}

fn severity(kind: Kind) -> &'static str {
    if kind.is_warning() { "warning" } else { "info" }
}

/// The whole message in one line.
pub(super) fn title(cluster: &str, message: &Message) -> String {
    let prefix = match cluster {
        "" => String::new(),
        cluster => format!("[{cluster}] "),
    };
    if let ([one], 1) = (message.notices.as_slice(), message.count) {
        return format!("{prefix}{}", one.message);
    }
    let mut subjects: Vec<String> = Vec::new();
    for subject in message.notices.iter().map(Notice::subject) {
        if !subject.is_empty() && !subjects.contains(&subject) {
            subjects.push(subject);
        }
    }
    let dots = if subjects.len() > NAMED { ", ..." } else { "" };
    subjects.truncate(NAMED);
    let (count, what) = (message.count, message.kind.of_several());
    format!("{prefix}{count} {what}: {}{dots}", subjects.join(", "))
}

/// The whole message for a person.
pub(super) fn text(cluster: &str, message: &Message, dropped: u64) -> String {
    let mut lines = vec![title(cluster, message)];
    let is_one = message.count == 1;
    for notice in &message.notices {
        if !is_one {
            lines.push(format!("- {}", notice.message));
        }
        let details = details(notice);
        lines.extend(details.into_iter().map(|line| format!("  {line}")));
    }
    let more = u64::from(message.count).saturating_sub(message.notices.len() as u64);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    if dropped > 0 {
        lines.push(format!(
            "{dropped} notices before these could not be delivered (muster events)"
        ));
    }
    if message.to.is_some() {
        // Whoever named this address need not be its owner.
        lines.push(match is_one {
            true => "You get this because the job asks for it (spec.notify).".to_owned(),
            false => "You get this because the jobs ask for it (spec.notify).".to_owned(),
        });
    }
    lines.join("\n")
}

/// Who, what it printed, and what to type next.
fn details(notice: &Notice) -> Vec<String> {
    let mut details = Vec::new();
    if let Some(culprit) = &notice.culprit {
        let cause = notice.cause.as_ref();
        let cause = cause.map(|cause| format!(" ({cause})")).unwrap_or_default();
        details.push(format!("culprit: {culprit}{cause}"));
    }
    details.extend(notice.error.as_ref().map(|error| format!("error: {error}")));
    details.extend(notice.job.as_ref().map(|job| {
        let namespace = match job.namespace.as_str() {
            "default" => String::new(),
            namespace => format!(" -n {namespace}"),
        };
        format!("muster explain {}{namespace}", job.name)
    }));
    if notice.job.is_none() {
        let node = notice.node.as_ref();
        details.extend(node.map(|node| format!("muster describe node {node}")));
    }
    details
}

/// What Slack's text means otherwise: <https://docs.slack.dev/messaging/formatting-message-text>.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn moment(at: Timestamp) -> String {
    let us = i64::try_from(at.0).unwrap_or(i64::MAX);
    let moment = Moment::from_microsecond(us).unwrap_or(Moment::MAX);
    moment.to_string()
}

#[cfg(test)]
mod tests {
    use muster_core::id::{Generation, JobName};

    use super::*;

    fn notice(name: &str) -> Notice {
        Notice {
            job: Some(JobName {
                namespace: "team-a".into(),
                name: name.into(),
            }),
            uid: Some("u1".into()),
            node: Some("b".into()),
            generation: Some(Generation(2)),
            culprit: Some("rank 3 on b".into()),
            cause: Some("WorkerFailed".into()),
            error: Some("ValueError: <b>".into()),
            ..Notice::new(
                Kind::JobFailed,
                Timestamp(1_700_000_000_000_000),
                &format!("team-a/{name}: rank 3 on b failed"),
            )
        }
    }

    fn message(notices: Vec<Notice>, count: u32) -> Message {
        Message {
            number: 7,
            receiver: "chat".into(),
            of_jobs: false,
            to: None,
            kind: Kind::JobFailed,
            first: Timestamp(1_700_000_000_000_000),
            due: Timestamp(1_700_000_010_000_000),
            count,
            notices,
        }
    }

    fn json_of(form: Form, message: &Message, dropped: u64) -> Value {
        serde_json::from_slice(&of(form, "prod", message, dropped)).unwrap()
    }

    #[test]
    fn a_webhook_gets_all_that_is_known() {
        let body = json_of(Form::Webhook, &message(vec![notice("digits")], 1), 0);
        assert_eq!(
            body,
            json!({
                "version": 1,
                "id": "60a24181e4000-7",
                "cluster": "prod",
                "kind": "jobFailed",
                "severity": "warning",
                "at": "2023-11-14T22:13:20Z",
                "title": "[prod] team-a/digits: rank 3 on b failed",
                "text": "[prod] team-a/digits: rank 3 on b failed\n  culprit: rank 3 on b (WorkerFailed)\n  error: ValueError: <b>\n  muster explain digits -n team-a",
                "count": 1,
                "dropped": 0,
                "notices": [{
                    "at": "2023-11-14T22:13:20Z",
                    "namespace": "team-a",
                    "job": "digits",
                    "uid": "u1",
                    "generation": 2,
                    "node": "b",
                    "message": "team-a/digits: rank 3 on b failed",
                    "culprit": "rank 3 on b",
                    "cause": "WorkerFailed",
                    "error": "ValueError: <b>",
                }],
            })
        );
    }

    #[test]
    fn a_chat_gets_text_that_means_nothing_else() {
        let storm = message(["a", "b", "c", "d"].map(notice).to_vec(), 40);
        let body = json_of(Form::Slack, &storm, 12);
        let text = body["text"].as_str().unwrap();
        let first = text.lines().next().unwrap();
        assert_eq!(
            first,
            "[prod] 40 jobs have failed: team-a/a, team-a/b, team-a/c, ..."
        );
        assert!(text.contains("error: ValueError: &lt;b&gt;"), "{text}");
        assert!(text.contains("\nand 36 more\n12 notices before"), "{text}");
    }

    #[test]
    fn an_alertmanager_gets_an_alert_for_each_notice() {
        let storm = message(vec![notice("a"), notice("b")], 5);
        let body = json_of(Form::Alertmanager, &storm, 0);
        let alerts = body.as_array().unwrap();
        assert_eq!(alerts.len(), 3);
        let labels = &alerts[1]["labels"];
        assert_eq!(
            (
                &labels["alertname"],
                &labels["job_name"],
                &labels["severity"]
            ),
            (&json!("MusterJobFailed"), &json!("b"), &json!("warning"))
        );
        assert_eq!(alerts[0]["startsAt"], "2023-11-14T22:13:20Z");
        assert_eq!(
            alerts[2]["annotations"]["summary"],
            "3 more jobs have failed"
        );
    }
}
