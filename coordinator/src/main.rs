//! `muster-coordinator`: reads its options, opens its store, serves.
#![forbid(unsafe_code)]

use std::{fs, process::ExitCode};

use anyhow::Context;
use clap::{CommandFactory, Parser, error::ErrorKind};
use muster_coordinator::{
    audit,
    commands::Command,
    kubernetes::{self, Leader},
    options::{Options, StoreKind},
    serve::{Coordinator, Settings},
    standby,
    store::{
        Store,
        kubernetes::{Candidate, LeaseTimes, SharedTrust},
        redb::RedbStore,
    },
    trust::{self, Trust},
};
use muster_rpc::listen;
use muster_runtime::{telemetry, version::version};
use tracing::info;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A start can fail before logging is set up, and a person may be watching. So print one
            // plain line with the whole chain.
            eprintln!("muster-coordinator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    if let Some(command) = Command::of_arguments() {
        return command.run();
    }
    let Options {
        listen: address,
        metrics_listen,
        server_names,
        accept_unknown_peers,
        state_dir,
        ready_file,
        turn_stats,
        notify,
        certificate_life,
        min_term,
        site,
        kubernetes,
        only_check,
        log_format,
        log_filter,
        policy,
        store,
        pod_name,
        lease,
    } = Options::parse();
    let wrong = |message: String| -> ! {
        let error = Options::command().error(ErrorKind::ValueValidation, message);
        error.exit()
    };
    let policy = policy.policy().unwrap_or_else(|message| wrong(message));
    let site = site
        .files(kubernetes.has_agents())
        .unwrap_or_else(|message| wrong(message));
    let notify = notify.map(|path| {
        muster_coordinator::notify::read(&path).unwrap_or_else(|message| wrong(message))
    });
    if only_check {
        return Ok(());
    }
    telemetry::start(log_format, &log_filter)?;
    info!(version = version(), state_dir = %state_dir.display(), "starting");
    if let Some(path) = &ready_file
        && let Err(e) = fs::remove_file(path)
        && e.kind() != std::io::ErrorKind::NotFound
    {
        return Err(e).with_context(|| format!("remove old ready file {}", path.display()));
    }

    // Only the coordinator's own user may read what it writes, because the store holds the jobs'
    // environment.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    listen::raise_open_files();
    // One thread is enough: the engine has its own, and everything else only moves messages.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(async {
        let kubernetes = kubernetes.settings().await?;
        let (mut leading, mut shared, mut leader) = (None, None, None);
        if store == StoreKind::Kubernetes {
            let configuration = kubernetes::configuration().await?;
            let process = pod_name.as_deref().unwrap_or("muster-coordinator");
            let candidate = Candidate::start(&configuration, process, LeaseTimes::of(lease))?;
            leader = pod_name.map(|pod| Leader::of(&configuration, pod)).transpose()?;
            let Some(store) = standby::wait(address, candidate, leader.as_ref()).await? else {
                return Ok(());
            };
            leading = Some(store);
            shared = Some(SharedTrust::fetch(&configuration, state_dir.clone()).await?);
        }
        if site.is_some() && !server_names.is_empty() {
            info!("--server-names is not used: the names are those in the certificate of --tls-cert-file");
        } else if !server_names.is_empty() {
            let (authority, new) = trust::init(&state_dir, None, &server_names)?;
            if new {
                info!(pin = %authority.pin(), "a certificate authority was made");
            }
        }
        if let Some(shared) = &mut shared {
            // A new authority must not be lost once somebody knows it.
            shared.keep().await?;
        }
        let settings = Settings {
            shared,
            leader,
            trust: match site {
                Some(files) => Some(Trust::of_site(&state_dir, files)?),
                None => Trust::open(&state_dir)?.map(|trust| trust.with_life(certificate_life)),
            },
            audit: audit::Options::of(&state_dir),
            listen: address,
            metrics: metrics_listen,
            accept_unknown: accept_unknown_peers,
            policy,
            notify,
            min_term,
            kubernetes,
            ready_file,
            turn_stats,
        };
        let open = || match leading {
            Some(store) => Ok(Box::new(store) as Box<dyn Store>),
            None => RedbStore::open(&state_dir).map(|store| Box::new(store) as Box<dyn Store>),
        };
        let mut coordinator = Coordinator::start(settings, open).await?;
        coordinator.obey_signals()?;
        coordinator.run().await?;
        Ok(())
    })
}
