//! What is measured, in order: all nodes connect; rest; a job starts; rest; progress; one member
//! dies, many times; the coordinator is killed and comes back.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use muster_proto::v1::{JobRef, JobSpec, ListNodesRequest, RestartPolicy, SubmitRequest};
use muster_rpc::{Address, dial, dial::Options as DialOptions};
use tokio_util::sync::CancellationToken;

use crate::{
    Options,
    coordinator::Coordinator,
    figures::{Document, Flooded, Rest, Restart, Spread},
    fleet::Fleet,
    flood::Flood,
    identities,
    node::{Do, What},
    pages::pages,
    readers::readers,
    scrape::scrapes,
    taken::Taken,
    turns::{Turn, Turns},
};

/// The limit for anything that should take a second or two. Anything slower is a failure worth
/// reading about.
const PATIENCE: Duration = Duration::from_secs(120);
/// By then the buffers of a burst are freed, and late messages have arrived.
const SETTLE: Duration = Duration::from_secs(3);
/// Equal to the agents' own limit (five times a second).
const PROGRESS: Duration = Duration::from_millis(200);
/// The wait after a restart: the 10 s for which a coordinator listens before silence means
/// anything, and twice the time to become Lost in a fleet of 10,000, whose heartbeat is stretched
/// to 5 s.
const AFTERMATH: Duration = Duration::from_secs(30);

pub(crate) async fn run(options: &Options) -> Result<Document> {
    ensure!(
        options.members <= options.agents,
        "--members: more than --agents"
    );
    let flags: Vec<String> = FLAGS
        .iter()
        .map(|flag| (*flag).to_owned())
        .chain((options.scrapes > 0).then(|| "--metrics-listen=127.0.0.1:0".to_owned()))
        .chain(options.flags.iter().cloned())
        .collect();
    ensure!(
        options.scrapes == 0 || options.members + options.jobs <= options.agents,
        "--jobs: more than there are --agents beside the --members"
    );
    let mut coordinator =
        Coordinator::start(&options.coordinator, &options.dir, &flags, options.tls)?;
    let mut turns = Turns::new(coordinator.turns());
    let mut found = Document {
        agents: options.agents,
        gpus: options.gpus,
        members: options.members,
        flags: options.flags.clone(),
        death: options.death().to_string(),
        ..Document::default()
    };

    let (identities, user) = if options.tls {
        let (before, began) = (coordinator.taken()?, Instant::now());
        let folder = options.dir.join("identities");
        let folder = identities::join(&coordinator, folder, options.agents).await?;
        found.join_s = Some(began.elapsed().as_secs_f64());
        found.join_cpu_s = Some(coordinator.taken()?.cpu_s - before.cpu_s);
        (Some(folder), identities::user(&coordinator).await?)
    } else {
        (None, DialOptions::default())
    };
    let (shutdown, before, began) = (
        CancellationToken::new(),
        coordinator.taken()?,
        Instant::now(),
    );
    let mut fleet = Fleet::start(
        &coordinator.url()?,
        identities.as_deref(),
        options.agents,
        options.gpus,
        &shutdown,
    )?;
    let welcomed = fleet
        .all(What::Welcome(1), options.agents, PATIENCE)
        .await?;
    found.first_connect_s = since(began, last(&welcomed));
    found.first_connect_cpu_s = coordinator.taken()?.cpu_s - before.cpu_s;
    say(&format!(
        "{} agents welcomed in {:.1} s",
        options.agents, found.first_connect_s
    ));

    found.idle = Some(rest(&coordinator, options.rest).await?);
    say(&format!("idle: {:?}", found.idle));

    let began = Instant::now();
    submit(&coordinator.url()?, user.clone(), options.members).await?;
    let mut members = fleet
        .all(What::Running(1), options.members, PATIENCE)
        .await?;
    found.first_start_ms = since(began, last(&members)) * 1e3;
    say(&format!(
        "{} members run after {:.0} ms",
        options.members, found.first_start_ms
    ));

    found.training = Some(rest(&coordinator, options.rest).await?);
    say(&format!("training: {:?}", found.training));
    members.sort_unstable();
    let members: Vec<usize> = members.into_iter().map(|(node, _)| node).collect();
    if options.progress > 0 {
        found.progress = Some(progress(&coordinator, &fleet, &members, options.progress).await?);
        say(&format!("progress: {:?}", found.progress));
    }
    if options.scrapes > 0 {
        let scraped = scrapes(&coordinator, user.clone(), options.jobs, options.scrapes).await?;
        say(&format!("scraped: {scraped:?}"));
        found.scraped = Some(scraped);
    }
    if let Some(muster) = &options.muster {
        found.pages = pages(muster, &coordinator, options.scrapes).await?;
        say(&format!("pages: {:?}", found.pages));
        if options.readers > 0 {
            let seconds = Duration::from_secs(options.reading);
            let read = readers(muster, &coordinator, options.readers, seconds).await?;
            say(&format!("read: {read:?}"));
            found.read = Some(read);
        }
    }
    if options.strangers > 0 {
        let flooded = flood(&coordinator, &mut fleet, &mut turns, user, options).await?;
        say(&format!("flooded: {flooded:?}"));
        found.flooded = Some(flooded);
    }
    tokio::time::sleep(SETTLE).await;
    let broken = exits(
        &coordinator,
        &mut fleet,
        &mut turns,
        &members,
        options,
        &mut found,
    )
    .await?;
    let after = coordinator.taken()?;
    (found.rss_after_exits_mib, found.store_mib) = (
        mib(after.rss_kib),
        coordinator.store_bytes() as f64 / 1_048_576.0,
    );
    ensure!(
        broken == options.exits,
        "{broken} generations broke, {} should have",
        options.exits
    );
    for number in 0..options.restarts {
        let restart = restart(
            &mut coordinator,
            &mut fleet,
            &mut turns,
            number as u64 + 2,
            options.agents,
        )
        .await?;
        say(&format!("restart: {restart:?}"));
        found.restarts.push(restart);
    }
    coordinator.kill()?;
    Ok(found)
}

/// One job breaks a hundred times, and must not wait for its back-off.
const FLAGS: [&str; 2] = ["--backoff-first=1ms", "--backoff-max=1ms"];

async fn submit(coordinator: &Address, user: DialOptions, members: usize) -> Result<()> {
    let mut client = dial(coordinator, user).await?.jobs();
    let nodes = Some(i64::try_from(members)?);
    let spec = JobSpec {
        replicas: nodes,
        min_replicas: Some(1),
        max_replicas: nodes,
        proc_per_node: Some(1),
        gpus_per_node: Some(0),
        command: vec!["python3".into()],
        args: [
            "train.py",
            "--config",
            "configs/large.yaml",
            "--data",
            "/data/shards",
        ]
        .map(str::to_owned)
        .into(),
        restart_policy: Some(RestartPolicy {
            max_restarts: Some(1_000_000),
            window: None,
            max_same_failures: None,
        }),
        scale_up_cooldown: Some("0s".into()),
        ..JobSpec::default()
    };
    let job = Some(JobRef {
        namespace: "default".into(),
        name: "large".into(),
    });
    client
        .submit(SubmitRequest {
            r#ref: job,
            spec: Some(spec),
            ..SubmitRequest::default()
        })
        .await
        .context("submit")?;
    Ok(())
}

async fn rest(coordinator: &Coordinator, seconds: u64) -> Result<Rest> {
    tokio::time::sleep(SETTLE).await;
    let before = coordinator.taken()?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    Ok(between(before, coordinator.taken()?))
}

/// Strangers come, and the agents, the job and users go on beside them.
async fn flood(
    coordinator: &Coordinator,
    fleet: &mut Fleet,
    turns: &mut Turns,
    user: DialOptions,
    options: &Options,
) -> Result<Flooded> {
    turns.read()?;
    fleet.drain();
    let url = coordinator.url()?;
    let flood = Flood::start(coordinator.socket()?, options.strangers);
    let calls = async {
        let mut times = Vec::new();
        for _ in 0..options.rest {
            let began = Instant::now();
            let mut nodes = dial(&url, user.clone()).await?.nodes();
            let request = ListNodesRequest {
                page_size: 1,
                ..ListNodesRequest::default()
            };
            nodes.list(request).await.context("a user's call")?;
            times.push(began.elapsed().as_secs_f64());
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        anyhow::Ok(times)
    };
    let (rest, times) = tokio::join!(rest(coordinator, options.rest), calls);
    let (open, opened) = flood.count();
    drop(flood);
    tokio::time::sleep(SETTLE).await;
    let said = turns.read()?;
    Ok(Flooded {
        strangers: options.strangers,
        open,
        opened,
        rest: rest?,
        call: Spread::of(times?),
        declared_suspect: said.suspects,
        declared_lost: said.lost,
        generations_broken: said.broken,
        welcomed_again: fleet.drain(),
    })
}

async fn progress(
    coordinator: &Coordinator,
    fleet: &Fleet,
    members: &[usize],
    seconds: u64,
) -> Result<Rest> {
    let before = coordinator.taken()?;
    let mut ticker = tokio::time::interval(PROGRESS);
    for step in 1..=seconds * 5 {
        ticker.tick().await;
        fleet.act_if_idle(members, Do::Step(step));
    }
    Ok(between(before, coordinator.taken()?))
}

fn between(before: Taken, after: Taken) -> Rest {
    let seconds = (after.at - before.at).as_secs_f64();
    Rest {
        seconds,
        rss_mib: mib(after.rss_kib),
        cores: (after.cpu_s - before.cpu_s) / seconds,
    }
}

/// One member dies and all members get the next generation, repeatedly. Returns how many
/// generations broke.
async fn exits(
    coordinator: &Coordinator,
    fleet: &mut Fleet,
    turns: &mut Turns,
    members: &[usize],
    options: &Options,
    found: &mut Document,
) -> Result<usize> {
    let exits = options.exits;
    turns.read()?;
    let before = coordinator.taken()?;
    let (mut decided, mut assigned_first, mut assigned_all, mut running_all) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut delivered, mut deciding, mut all_turns, mut broken) =
        (Vec::new(), Vec::<Turn>::new(), Vec::<Turn>::new(), 0);
    for round in 0..exits {
        // The victims are spread over the ranks. The step is prime, so that they differ.
        let victim = members[(round * 7_919) % members.len()];
        let generation = round as u64 + 2;
        fleet.drain();
        let (wall, died) = (unix_us(), Instant::now());
        fleet.act(victim, Do::Die(options.death())).await?;
        let (assigned, running) = fleet
            .both(
                What::Assigned(generation),
                What::Running(generation),
                members.len(),
                PATIENCE,
            )
            .await?;
        assigned_first.push(
            assigned
                .iter()
                .map(|(_, at)| since(died, *at))
                .fold(f64::MAX, f64::min),
        );
        assigned_all.push(since(died, last(&assigned)));
        running_all.push(since(died, last(&running)));
        // The last turn of this round writes its log line after its orders are sent.
        tokio::time::sleep(Duration::from_millis(150)).await;
        let said = turns.read()?;
        broken += said.broken;
        let deciding_turn = said
            .turns
            .iter()
            .find(|turn| turn.told as usize >= members.len() - 1 && turn.done_us > wall);
        let turn = deciding_turn.context("no turn told all members of their assignment")?;
        let took = (turn.done_us - wall) as f64 / 1e6;
        decided.push(took);
        delivered.push((assigned_all.last().expect("just pushed") - took).max(0.0));
        deciding.push(turn.clone());
        all_turns.extend(said.turns);
    }
    found.exit_cpu_ms = (coordinator.taken()?.cpu_s - before.cpu_s) * 1e3 / exits.max(1) as f64;
    let named = [
        ("decided, stored and handed to all sessions", decided),
        ("first member has its assignment", assigned_first),
        ("delivery: from decided to the last member", delivered),
        ("all members have their assignment", assigned_all),
        ("all members train", running_all),
    ];
    found.exit = named
        .into_iter()
        .filter_map(|(name, times)| Some((name, Spread::of(times)?)))
        .collect();
    let us = |field: fn(&Turn) -> u64, turns: &[Turn]| {
        Spread::of(turns.iter().map(|turn| field(turn) as f64 / 1e6))
    };
    let named = [
        ("deciding turn: think", us(|turn| turn.think_us, &deciding)),
        (
            "deciding turn: commit",
            us(|turn| turn.commit_us, &deciding),
        ),
        (
            "deciding turn: hand over",
            us(|turn| turn.act_us, &deciding),
        ),
        ("any turn: think", us(|turn| turn.think_us, &all_turns)),
        ("any turn: commit", us(|turn| turn.commit_us, &all_turns)),
    ];
    found.turns = named
        .into_iter()
        .filter_map(|(name, spread)| Some((name, spread?)))
        .collect();
    let inputs: u64 = all_turns.iter().map(|turn| turn.inputs).sum();
    say(&format!(
        "exits: {:#?} {:#?}; {} turns of {inputs} inputs",
        found.exit,
        found.turns,
        all_turns.len()
    ));
    Ok(broken)
}

async fn restart(
    coordinator: &mut Coordinator,
    fleet: &mut Fleet,
    turns: &mut Turns,
    term: u64,
    agents: usize,
) -> Result<Restart> {
    turns.read()?;
    fleet.drain();
    let killed = Instant::now();
    coordinator.kill()?;
    let launched = Instant::now();
    coordinator.restart()?;
    let serving_s = launched.elapsed().as_secs_f64();
    let mut welcomed = fleet.all(What::Welcome(term), agents, PATIENCE).await?;
    welcomed.sort_by_key(|(_, at)| *at);
    let taken = coordinator.taken()?;
    tokio::time::sleep(AFTERMATH).await;
    let said = turns.read()?;
    Ok(Restart {
        serving_s,
        all_welcomed_s: since(killed, last(&welcomed)),
        half_welcomed_s: since(killed, welcomed[welcomed.len() / 2].1),
        cpu_s: taken.cpu_s,
        declared_suspect: said.suspects,
        declared_lost: said.lost,
        generations_broken: said.broken,
        welcomed_again: fleet.drain(),
        rss_mib: mib(coordinator.taken()?.rss_kib),
    })
}

fn last(seen: &[(usize, Instant)]) -> Instant {
    seen.iter()
        .map(|(_, at)| *at)
        .max()
        .expect("nothing is awaited of nobody")
}

fn since(began: Instant, at: Instant) -> f64 {
    at.saturating_duration_since(began).as_secs_f64()
}

fn unix_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}

fn mib(kib: u64) -> f64 {
    (kib as f64 / 1024.0 * 10.0).round() / 10.0
}

fn say(what: &str) {
    eprintln!("{what}");
}
