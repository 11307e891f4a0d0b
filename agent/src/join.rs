//! `muster-agent join`: gets this node's certificate for a token, once, and ends. With `--service` it also
//! makes the agent a service.

mod service;

use std::{env, fs, io::Read, path::PathBuf, process::ExitCode};

use clap::Parser;
use muster_core::id::node_name_error;
use muster_rpc::{
    Address,
    credentials::Credentials,
    enroll::{self, EnrollError, TOKEN},
    tls::{Pin, Trust},
};
use muster_runtime::{chain::chain, version::version};
use muster_service::ServiceFlags;
use tonic::Code;

use crate::config::{credentials_path, host_name};

/// Join a coordinator on another machine: get this node's certificate for a token
///
/// The certificate is kept in the state directory and renews itself while the agent runs. After
/// this, start the agent with the same --state-dir; it knows its coordinator and its name.
#[derive(Debug, Parser)]
#[command(name = "muster-agent join", bin_name = "muster-agent join", version = version(), max_term_width = 110, after_help = "\
The token is read from $MUSTER_TOKEN, or from --token-file.

Example:
  MUSTER_TOKEN=... muster-agent join https://train.example.org:7070 --ca-pin sha256:... --state-dir /var/lib/muster/agent
  muster-agent --state-dir /var/lib/muster/agent

  # The same as a service of systemd, with a label, as root; give it again to change something
  MUSTER_TOKEN=... muster-agent join https://train.example.org:7070 --ca-pin sha256:... --service -- --label rack=r7")]
pub struct Join {
    // The word `join` itself.
    #[arg(hide = true, value_name = "join")]
    word: String,
    /// The coordinator's address
    #[arg(value_name = "URL", required_unless_present = "root")]
    coordinator: Option<String>,
    /// The pin of its certificate authority, as `muster-coordinator pin` prints it
    #[arg(long, env = "MUSTER_CA_PIN", value_name = "PIN")]
    ca_pin: Option<Pin>,
    /// The certificate authority itself, PEM, in place of its pin
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "ca_pin",
        required_unless_present_any = ["ca_pin", "root"]
    )]
    ca_file: Option<PathBuf>,
    /// The token, in a file; - is the standard input
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// This node's name, unique in the fleet; the token's, or else the host name, if not given
    #[arg(long, env = "MUSTER_NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// The agent's state directory; that of a service is /var/lib/muster-agent
    #[arg(
        long,
        env = "MUSTER_STATE_DIR",
        value_name = "DIR",
        required_unless_present = "service"
    )]
    state_dir: Option<PathBuf>,
    /// The user that the service and all jobs of this node run as, if not `muster`; it must be there already
    #[arg(long, value_name = "USER", requires = "service")]
    run_as: Option<String>,
    #[command(flatten)]
    service: ServiceFlags,
}

impl Join {
    pub fn run(self) -> ExitCode {
        let done = match self.service.service {
            true => self.install(),
            false => self.join(),
        };
        match done {
            Ok(said) => {
                println!("{said}");
                ExitCode::SUCCESS
            }
            Err(why) => {
                eprintln!("muster-agent join: {why}");
                ExitCode::FAILURE
            }
        }
    }

    /// `None`: none is given, as for an image.
    fn address(&self) -> Result<Option<Address>, String> {
        let Some(text) = &self.coordinator else {
            return Ok(None);
        };
        let address: Address = text.parse().map_err(|e| format!("{text:?}: {e}"))?;
        if !address.is_tls() || address.port().is_none() {
            return Err(format!(
                "{address} is not a URL like https://train.example.org:7070"
            ));
        }
        Ok(Some(address))
    }

    fn join(self) -> Result<String, String> {
        let (Some(address), Some(state_dir)) = (self.address()?, &self.state_dir) else {
            return Err("the coordinator's URL and --state-dir are needed".into());
        };
        let given = self.node_name.clone().unwrap_or_default();
        if let Some(why) = node_name_error(&given).filter(|_| !given.is_empty()) {
            return Err(format!("--node-name: {why}"));
        }
        let trust = match (self.ca_pin, self.ca_file) {
            (Some(pin), _) => Trust::Pinned(pin),
            (None, Some(file)) => Trust::Authorities(
                fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?,
            ),
            (None, None) => return Err("--ca-pin is needed".into()),
        };
        let token = token(self.token_file)?;
        let path = credentials_path(state_dir);
        let others = |principal: &str| {
            let there = Credentials::read(&path).ok()?;
            (there.principal != principal).then(|| {
                format!(
                    "{} is the state directory of {}; use another one for {principal}",
                    state_dir.display(),
                    there.principal
                )
            })
        };
        if !given.is_empty()
            && let Some(why) = others(&format!("host/{given}"))
        {
            return Err(why);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| format!("start: {e}"))?;
        let got = runtime.block_on(async {
            match enroll::join(&address, &trust, token.trim(), &given).await {
                // The token is for any name, so it takes this machine's.
                Err(EnrollError::Refused(why))
                    if given.is_empty() && why.code() == Code::InvalidArgument =>
                {
                    let name = host_name().map_err(|e| EnrollError::Name(e.to_string()))?;
                    enroll::join(&address, &trust, token.trim(), &name).await
                }
                joined => joined,
            }
        });
        let got = got.map_err(|e| match e.explain() {
            Some(hint) => format!("{}: {hint}", chain(&e)),
            None => chain(&e),
        })?;
        if let Some(why) = others(&got.principal) {
            return Err(format!("{why}; the token is used up"));
        }
        got.write(&path).map_err(|e| e.to_string())?;
        Ok(format!(
            "{} has joined {address}; its certificate is in {}\nNow start the agent: muster-agent --state-dir {}",
            got.principal,
            path.display(),
            state_dir.display()
        ))
    }
}

fn token(file: Option<PathBuf>) -> Result<String, String> {
    let text = match file {
        Some(file) if file.as_os_str() == "-" => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(|e| format!("read the token: {e}"))?;
            text
        }
        Some(file) => fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?,
        None => env::var(TOKEN).map_err(|_| {
            format!("there is no token: set {TOKEN} or give --token-file; `muster-coordinator token create --host` makes one")
        })?,
    };
    Ok(text)
}
