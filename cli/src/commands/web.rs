//! `muster web`

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use clap::Args;
use muster_rpc::http_port::HttpPort;
use tonic::service::Routes;

use crate::{
    context::Context,
    fail::Failure,
    web::{
        door::Door,
        pages::{self, Site},
        shared::Pages,
    },
};

/// The flag, for errors.
const FLAG: &str = "--port";
/// Each browser that shows a page keeps a connection: 200 readers with two each.
const CONNECTIONS_MAX: usize = 400;

/// Show jobs, the queue, nodes and events in a browser.
///
/// Serves pages on this machine until it is interrupted: all jobs with those that need a person
/// first, the timeline of a job with its incidents, who caused them and what each cost, where time
/// went, who waits and until when, queues with their quotas, each GPU with the job that holds it,
/// nodes and events. What they show is asked of the coordinator as you, with your role; nothing can be changed there. The link that is printed lets
/// one browser in; when it is used, a link for another one is printed.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # All jobs
  muster web

  # One job's timeline
  muster web digits

  # From a machine that you reach by ssh: the same port on both sides
  ssh -L 8080:127.0.0.1:8080 head muster web --port 8080")]
pub(crate) struct Web {
    /// Open this job's page
    job: Option<String>,

    /// Port of the loopback address to listen on [default: a free one]
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 0,
        hide_default_value = true
    )]
    port: u16,
}

pub(crate) async fn web(cx: &Context, args: Web) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let port = HttpPort::open(FLAG, address).map_err(Failure::request)?;
    let port = port.with_room_for(CONNECTIONS_MAX);
    let address = port.address();
    let start = match args.job {
        Some(job) => format!("/jobs/{}/{job}", cx.namespace()),
        None => "/".to_owned(),
    };
    let link = move |ticket: &str, start: &str| match start {
        "/" => format!("http://{address}/open?ticket={ticket}"),
        start => format!("http://{address}/open?ticket={ticket}&to={start}"),
    };
    let quiet = cx.globals.quiet;
    let site = Arc::new(Site {
        server: client.server().to_string(),
        client,
        namespace: cx.globals.namespace.clone().unwrap_or_default(),
        door: Door::new(address.port()),
        pages: Pages::default(),
        used: Box::new(move |ticket| {
            if !quiet {
                eprintln!(
                    "a browser was let in; for another one: {}",
                    link(ticket, "/")
                );
            }
        }),
    });
    cx.print(&format!("{}\n", link(&site.door.ticket(), &start)))?;
    cx.say("open this link in a browser on this machine; Ctrl-C ends it");
    let ended = async {
        // Without a handler the signal ends the program, which is what is wanted.
        let _ = tokio::signal::ctrl_c().await;
    };
    let (accepting, server) = port.serve(Routes::from(pages::router(site)), ended);
    tokio::select! {
        () = accepting => Ok(()),
        outcome = server => outcome.map_err(Failure::request),
    }
}
