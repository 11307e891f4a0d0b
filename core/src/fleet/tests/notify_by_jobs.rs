//! A job says who is told of it, as far as the operator has opened that, and whatever jobs do, the operator hears what it wants.

use super::{
    notify::{fails, names, rules},
    *,
};
use crate::{
    exit::Exit,
    fleet::notify::{
        Addressee, Allowed, Answered, Dispatch, JOBS_BYTES_MAX, JOBS_MAX, KEPT_FOR, Kind, Message,
        Next, Notice, Open, OpenMail, Outbox, Rules,
    },
    spec::NotifyDocument,
};

/// The operator's chat hears of these kinds; jobs may name `team` and addresses of one domain.
fn opened(on: &[Kind]) -> Rules {
    let mail = OpenMail {
        by: "mail".into(),
        to: vec![Allowed::read("*@example.org").unwrap()],
    };
    Rules {
        receivers: names(&["chat", "mail", "team"]),
        open: Open {
            receivers: names(&["team"]),
            mail: Some(mail),
        },
        ..rules(on)
    }
}

fn bench(on: &[Kind]) -> Bench {
    let mut bench = Bench::new(&["a"]);
    bench.fleet.policy.notify = opened(on);
    bench
}

fn asking(on: &[Kind], receivers: &[&str], mail: &[&str]) -> SpecDocument {
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
    SpecDocument {
        notify: vec![NotifyDocument {
            kinds: on.iter().map(|kind| kind.word().to_owned()).collect(),
            receivers: texts(receivers),
            mail: texts(mail),
        }],
        ..document(1, 1, 1)
    }
}

/// Receiver and address of all that waits.
fn to(bench: &Bench) -> Vec<(String, Option<String>, bool, u32)> {
    let mut all: Vec<_> = { bench.waiting().into_iter() }
        .map(|one| (one.receiver, one.to, one.of_jobs, one.count))
        .collect();
    all.sort();
    all
}

fn ends(bench: &mut Bench, name: &str, spec: SpecDocument) {
    bench.submit(name, spec);
    bench.rank_exits(name, 0, Exit::Code(0), None);
    bench.pass(SECOND);
    assert_eq!(bench.job(name).phase, Phase::Succeeded);
}

#[test]
fn a_job_names_who_is_told_besides_those_of_the_operator() {
    let mut bench = bench(&[Kind::JobSucceeded]);
    let asks = asking(&[], &["team"], &["Bob@example.org", "ann@example.org"]);
    ends(&mut bench, "digits", asks);
    let mail = |to: &str| ("mail".to_owned(), Some(to.to_owned()), true, 1);
    let told = [
        ("chat".to_owned(), None, false, 1),
        mail("ann@example.org"),
        mail("bob@example.org"),
        ("team".to_owned(), None, true, 1),
    ];
    assert_eq!(to(&bench), told);
    bench.starts_again();
    assert_eq!(to(&bench), told, "it is stored, and told once");
    fails(&mut bench, "other", "ValueError");
    assert_eq!(to(&bench), told, "another job's end is nothing to them");
}

#[test]
fn who_is_told_by_a_rule_is_told_once() {
    let mut bench = bench(&[Kind::JobSucceeded]);
    bench.fleet.policy.notify.open.receivers = names(&["chat"]);
    ends(&mut bench, "digits", asking(&[], &["chat"], &[]));
    assert_eq!(to(&bench), [("chat".to_owned(), None, false, 1)]);
    // Of what no rule names, the job's message is one of its own.
    let started = asking(&[Kind::JobStarted], &["chat"], &[]);
    bench.submit("second", started);
    bench.pass(SECOND);
    assert_eq!(to(&bench).len(), 2);
}

#[test]
fn a_start_is_told_when_all_ranks_run_for_the_first_time_and_never_again() {
    let mut bench = bench(&[Kind::JobStarted]);
    bench.submit(
        "digits",
        asking(&[Kind::JobStarted], &[], &["ann@example.org"]),
    );
    bench.pass(SECOND);
    let told = bench.notices();
    assert_eq!(told.len(), 2, "the chat and ann: {told:?}");
    assert!(
        told[0]
            .message
            .starts_with("default/digits has started: world 1 on "),
        "{told:?}"
    );
    bench.rank_exits("digits", 0, Exit::Code(1), Some("ValueError"));
    bench.pass(20 * SECOND);
    assert_eq!(bench.job("digits").last_generation.0, 2);
    bench.starts_again();
    bench.pass(20 * SECOND);
    assert_eq!(bench.job("digits").phase, Phase::Running);
    assert_eq!(bench.notices(), told, "it has started again");
    // A coordinator of before has not noted that it has started, and it runs.
    let uid = bench.job("digits").uid.clone();
    let mut older = bench.job("digits").clone();
    older.has_launched = false;
    older.read_older();
    assert!(older.has_launched, "{uid}");
}

#[test]
fn a_wait_that_a_job_alone_asks_for_is_told() {
    let mut bench = bench(&[]);
    let asks = SpecDocument {
        replicas: Some(2),
        min_replicas: Some(2),
        max_replicas: Some(2),
        ..asking(&[Kind::JobWaiting], &["team"], &[])
    };
    bench.submit("big", asks);
    bench.pass(61 * SECOND);
    assert_eq!(to(&bench), [("team".to_owned(), None, true, 1)]);
}

#[test]
fn what_is_not_open_is_refused_and_says_what_is() {
    let mut bench = bench(&[]);
    let mut refused = |spec| match bench.submit("digits", spec) {
        Answer::Refused(refusal) => refusal.to_string(),
        answer => panic!("{answer:?}"),
    };
    assert_eq!(
        refused(asking(&[], &["chat"], &[])),
        "spec.notify[0].receivers: \"chat\" is not open to jobs; open are team"
    );
    assert_eq!(
        refused(asking(&[], &["team"], &["ann@evil.org"])),
        "spec.notify[0].mail: mail to \"ann@evil.org\" is not open to jobs; allowed are *@example.org"
    );
    let mut nobody = Bench::new(&["a"]);
    let answer = nobody.submit("digits", asking(&[], &["team"], &[]));
    let Answer::Refused(refusal) = answer else {
        panic!("{answer:?}");
    };
    let must =
        "spec.notify: this coordinator tells nobody of anything: it was started without --notify";
    assert_eq!(refusal.to_string(), must);
}

#[test]
fn what_the_operator_has_closed_since_is_not_sent_and_the_job_says_so_once() {
    let mut bench = bench(&[]);
    let on = [
        Kind::JobStarted,
        Kind::RestartBudgetHalfSpent,
        Kind::JobSucceeded,
    ];
    bench.submit("digits", asking(&on, &["team"], &["ann@example.org"]));
    bench.pass(SECOND);
    assert_eq!(bench.waiting().len(), 2);
    bench.fleet.policy.notify.open.mail = None;
    bench.starts_again();
    let team = |count| ("team".to_owned(), None, true, count);
    assert_eq!(to(&bench), [team(1)], "what waits is for nobody any more");
    for line in ["ValueError", "KeyError"] {
        bench.rank_exits("digits", 0, Exit::Code(1), Some(line));
        bench.pass(20 * SECOND);
    }
    bench.rank_exits("digits", 0, Exit::Code(0), None);
    bench.pass(SECOND);
    assert_eq!(to(&bench), [team(1), team(1), team(1)]);
    let told = bench.events.iter();
    let told = told.filter(|event| event.reason == "NotNotified");
    let told: Vec<&str> = told.map(|event| event.message.as_str()).collect();
    let said = "default/digits will not notify ann@example.org: the operator no longer allows it";
    assert_eq!(told, [said]);
}

fn end_of(number: u64, at: Timestamp) -> Notice {
    Notice {
        uid: Some(format!("uid-{number}").into()),
        ..Notice::new(
            Kind::JobFailed,
            at,
            &format!("default/job-{number}: it failed"),
        )
    }
}

/// So many jobs end, each of which asks for something.
fn flood(bench: &mut Bench, jobs: u64, asks: impl Fn(u64) -> SpecDocument) {
    let rules = bench.fleet.policy.notify.clone();
    for number in 0..jobs {
        let document = JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Metadata {
                name: "digits".into(),
                namespace: None,
            },
            spec: asks(number),
        };
        let asked = document.check().unwrap().1;
        let now = bench.now;
        let outgoing = &mut bench.fleet.outgoing;
        outgoing.add(&rules, &asked.notify, end_of(number, now), now);
    }
}

#[test]
fn a_storm_of_jobs_is_one_message_for_an_address_whatever_they_call_it() {
    let mut bench = bench(&[]);
    flood(&mut bench, 1_000, |number| {
        let same = ["ann@example.org", "Ann@Example.org"][number as usize % 2];
        asking(&[], &[], &[same])
    });
    let outbox = bench.fleet.outgoing.outbox().clone();
    assert_eq!(outbox.messages.len(), 1);
    assert_eq!(outbox.messages[0].count, 1_000);
}

#[test]
fn what_is_dropped_puts_nobody_off() {
    let now = Timestamp(1_000_000_000);
    let (mut outbox, ann) = (
        Outbox::default(),
        Addressee::by_mail("mail", "ann@example.org"),
    );
    let mut last_due = None;
    for number in 0..10 {
        outbox.add(&ann, &end_of(number, now), SECOND, &mut last_due, now);
        assert_eq!(outbox.messages[0].due, now + SECOND);
        outbox.messages.clear();
    }
}

#[test]
fn whatever_jobs_ask_for_the_operator_hears_all() {
    let mut bench = bench(&[Kind::JobSucceeded]);
    ends(&mut bench, "asks", document(1, 1, 1));
    let before = bench.waiting();
    let to = |number: u64| format!("user-{number}@example.org");
    flood(&mut bench, 4_000, |number| {
        asking(&[], &[], &[&to(number % 2_000)])
    });
    bench.pass(SECOND);
    ends(&mut bench, "second", document(1, 1, 1));
    let outbox = bench.fleet.outbox().clone();
    let (of_jobs, own): (Vec<_>, Vec<_>) = outbox.messages.iter().partition(|one| one.of_jobs);
    assert_eq!(own.len(), 1);
    assert_eq!((own[0].number, own[0].count), (before[0].number, 2));
    assert!(of_jobs.len() <= JOBS_MAX, "{}", of_jobs.len());
    let bytes = serde_json::to_string(&of_jobs).unwrap().len();
    assert!(
        bytes < JOBS_BYTES_MAX + 10_000 && bytes > JOBS_BYTES_MAX / 4,
        "{bytes}"
    );
    assert!(outbox.dropped.is_empty(), "{:?}", outbox.dropped);
    let kept: u64 = of_jobs.iter().map(|one| u64::from(one.count)).sum();
    assert_eq!(outbox.dropped_of_jobs["mail"], 4_000 - kept);
    // Everybody's messages go after a day.
    bench.pass(KEPT_FOR + 2 * SECOND);
    assert!(bench.fleet.outbox().messages.is_empty());
}

/// So many messages, each to another person and of a minute of its own, of jobs of one namespace.
fn told_of(outbox: &mut Outbox, namespace: &str, to: &[&str], messages: u64) {
    for number in 0..messages {
        let at = Timestamp(1_000_000_000) + (outbox.last as u32) * SECOND;
        let job = JobName {
            namespace: namespace.to_owned(),
            name: format!("job-{number}"),
        };
        let notice = Notice {
            job: Some(job),
            uid: Some(format!("{namespace}-{number}").into()),
            ..end_of(number, at)
        };
        let to = match to {
            [] => format!("user-{number}@example.org"),
            people => people[number as usize % people.len()].to_owned(),
        };
        let to = Addressee::by_mail("mail", &to);
        outbox.add(&to, &notice, Duration::ZERO, &mut None, at);
    }
}

#[test]
fn a_namespace_that_floods_many_people_loses_its_own_messages() {
    let mut outbox = Outbox::default();
    told_of(&mut outbox, "quiet", &["bob@example.org"], 1);
    told_of(&mut outbox, "loud", &[], 2_000);
    outbox.drop_surplus(&opened(&[]), Timestamp(3_000_000_000));
    assert_eq!(outbox.messages.len(), JOBS_MAX);
    assert_eq!(outbox.messages[0].to.as_deref(), Some("bob@example.org"));
    let oldest = outbox.messages[1].notices[0].job.as_ref().unwrap();
    assert_eq!(oldest.to_string(), "loud/job-1501", "its oldest go first");
    // A message of both namespaces is that of the quiet one.
    let mut outbox = Outbox::default();
    told_of(&mut outbox, "loud", &[], 600);
    let mut quiet = outbox.messages[0].notices[0].clone();
    quiet.job.as_mut().unwrap().namespace = "quiet".into();
    outbox.messages[0].notices.push(quiet);
    outbox.drop_surplus(&opened(&[]), Timestamp(3_000_000_000));
    let kept = outbox.messages[0].to.as_deref();
    assert_eq!(kept, Some("user-0@example.org"));
}

#[test]
fn within_a_namespace_who_is_written_to_most_loses_first() {
    let mut outbox = Outbox::default();
    told_of(&mut outbox, "loud", &["bob@example.org"], 1);
    told_of(&mut outbox, "loud", &["ann@example.org"], 600);
    outbox.drop_surplus(&opened(&[]), Timestamp(2_000_000_000));
    assert_eq!(outbox.messages.len(), JOBS_MAX);
    assert_eq!(outbox.messages[0].to.as_deref(), Some("bob@example.org"));
}

#[test]
fn bytes_count_only_when_they_are_too_many() {
    let mut outbox = Outbox::default();
    told_of(&mut outbox, "long", &[], 40);
    let lengthen = |outbox: &mut Outbox, length| {
        for message in &mut outbox.messages[..40] {
            message.notices[0].error = Some("x".repeat(length));
        }
    };
    let of = |outbox: &Outbox, namespace: &str| {
        let own = |one: &&Message| one.notices[0].job.as_ref().unwrap().namespace == namespace;
        outbox.messages.iter().filter(own).count()
    };
    lengthen(&mut outbox, 800);
    told_of(&mut outbox, "short", &[], 600);
    outbox.drop_surplus(&opened(&[]), Timestamp(2_000_000_000));
    assert_eq!((of(&outbox, "long"), of(&outbox, "short")), (40, 460));
    outbox.messages.truncate(240);
    lengthen(&mut outbox, 8_000);
    outbox.drop_surplus(&opened(&[]), Timestamp(2_000_000_000));
    assert!(of(&outbox, "long") < 30, "{}", of(&outbox, "long"));
    assert_eq!(of(&outbox, "short"), 200);
}

#[test]
fn a_turn_with_many_ends_keeps_few_messages_while_it_adds() {
    let mut bench = bench(&[]);
    flood(&mut bench, 400, |number| {
        let to: Vec<String> =
            { (0..8).map(|at| format!("user-{number}-{at}@example.org")) }.collect();
        let to: Vec<&str> = to.iter().map(String::as_str).collect();
        asking(&[], &[], &to)
    });
    let held = bench.fleet.outgoing.outbox().messages.len();
    assert!(held <= 2 * JOBS_MAX, "{held}");
}

#[test]
fn a_long_address_counts() {
    let mut outbox = Outbox::default();
    let long = format!("{}@example.org", "a".repeat(200));
    told_of(&mut outbox, "a", &["b@x"], 1);
    let short = outbox.messages[0].size();
    outbox.messages[0].to = Some(long.clone());
    assert_eq!(outbox.messages[0].size() - short, long.len() - 3);
}

#[test]
fn what_jobs_ask_for_waits_apart_and_an_address_that_there_is_not_is_given_up() {
    let (mut outbox, mut dispatch) = (Outbox::default(), Dispatch::default());
    let now = Timestamp(1_000_000_000);
    let (jobs, own) = (Addressee::of_jobs("chat"), Addressee::of_operator("chat"));
    outbox.add(&jobs, &end_of(1, now), Duration::ZERO, &mut None, now);
    outbox.add(&own, &end_of(2, now), Duration::ZERO, &mut None, now);
    let numbers = |of_jobs| {
        let all = outbox.of("chat", of_jobs);
        all.map(|one| one.number).collect::<Vec<_>>()
    };
    assert_eq!((numbers(true), numbers(false)), (vec![1], vec![2]));
    dispatch.answered(1, Answered::Hopeless, now);
    let left = dispatch.next(outbox.of("chat", true), now);
    assert_eq!(left, Next::Nothing, "it is not tried again later either");
}

#[test]
fn an_outbox_of_before_is_read_and_one_without_jobs_is_as_it_was() {
    let older = r#"{"last":7,"messages":[{"number":7,"receiver":"chat","kind":"jobFailed","first":1,"due":2,"count":1,"notices":[]}]}"#;
    let read: Outbox = serde_json::from_str(older).unwrap();
    assert_eq!(
        (read.messages[0].of_jobs, &read.messages[0].to),
        (false, &None)
    );
    assert_eq!(serde_json::to_string(&read).unwrap(), older);
}
