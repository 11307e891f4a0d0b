//! `muster-coordinator remove --service`: takes the coordinator's service away again.

use std::{collections::BTreeSet, fs, path::PathBuf};

use clap::Args;
use muster_service::{Daemon, Removal, ServiceFlags, carry_out, remove};

const DAEMON: Daemon = Daemon::Coordinator;

/// States of a TCP socket in `/proc/net/tcp` (the kernel's `include/net/tcp_states.h`).
const ESTABLISHED: &str = "01";
const LISTEN: &str = "0A";

/// Stop the coordinator's service and remove its unit
///
/// The state, the settings and the user stay, so that `init --service` brings it back. It is refused while
/// nodes or users are connected.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator remove --service

  # With the state: no node and no user has a certificate any more, and no job is known
  muster-coordinator remove --service --purge")]
pub(super) struct Remove {
    /// The service of systemd is meant, which `init --service` has made
    #[arg(long, required = true)]
    service: bool,
    /// Remove the state and the settings, too: the authority, all jobs, the audit trail
    #[arg(long)]
    purge: bool,
    /// Stop it although nodes or users are connected
    #[arg(long)]
    force: bool,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
    /// The root folder of a machine that does not run
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

impl Remove {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let flags = ServiceFlags {
            root: self.root,
            ..ServiceFlags::default()
        };
        let machine = flags.machine(DAEMON)?;
        let found = machine.look(DAEMON, None, |_| true)?;
        let pid = found.unit.as_ref().and_then(|unit| unit.main_pid);
        let removal = Removal {
            daemon: DAEMON,
            purges: self.purge,
            is_forced: self.force,
            in_use: match pid.map_or(0, callers) {
                0 => Vec::new(),
                1 => vec!["1 connection of a node or user is open".into()],
                some => vec![format!("{some} connections of nodes and users are open")],
            },
        };
        let steps = remove(&removal, &found)?;
        let has_changed = carry_out(&machine, DAEMON, &steps, self.dry_run, None)?;
        let unit = DAEMON.unit();
        match has_changed {
            _ if self.dry_run && !steps.is_empty() => {}
            false => println!("Nothing to do: there is no {unit}."),
            true if self.purge => println!(
                "{unit} is removed, with its state. The user stays: userdel {}",
                DAEMON.user()
            ),
            true => println!(
                "{unit} is removed; {} and {} stay.",
                DAEMON.state_dir().display(),
                DAEMON.settings().display()
            ),
        }
        Ok(())
    }
}

/// How many connections to its port this process has.
fn callers(pid: u32) -> usize {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let descriptors = fs::read_dir(folder.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    let sockets = descriptors.filter_map(|descriptor| {
        let target = fs::read_link(descriptor.path()).ok()?;
        let number = target
            .to_str()?
            .strip_prefix("socket:[")?
            .strip_suffix(']')?;
        Some(number.to_owned())
    });
    let tables = ["net/tcp", "net/tcp6"].map(|name| fs::read_to_string(folder.join(name)));
    let text: String = tables.into_iter().flatten().collect();
    connections(&text, &sockets.collect())
}

/// Those of these sockets that are connected to a port on which another of them listens.
fn connections(tables: &str, sockets: &BTreeSet<String>) -> usize {
    let rows: Vec<(&str, &str)> = tables
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (_, port) = fields.get(1)?.rsplit_once(':')?;
            sockets
                .contains(*fields.get(9)?)
                .then_some((port, *fields.get(3)?))
        })
        .collect();
    let listens = |port: &str| rows.contains(&(port, LISTEN));
    let connected = rows
        .iter()
        .filter(|(port, state)| *state == ESTABLISHED && listens(port));
    connected.count()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn only_callers_count() {
        // The kernel's own form, with the sockets 1 to 5 of the coordinator and 9 of another process.
        let row = |local: &str, state: &str, socket: u32| {
            format!(
                "   0: {local} 0100007F:D2F0 {state} 00000000:00000000 00:00000000 00000000   998        0 {socket} 1 0 100\n"
            )
        };
        let tables = [
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n".to_owned(),
            row("00000000:1B9E", LISTEN, 1),
            row("0100007F:1B9E", ESTABLISHED, 2),
            row("00000000000000000000000001000000:1B9E", ESTABLISHED, 3),
            // It is about to end, and one that the coordinator has dialled itself.
            row("0100007F:1B9E", "06", 4),
            row("0100007F:D001", ESTABLISHED, 5),
            row("0100007F:1B9E", ESTABLISHED, 9),
        ];
        let sockets = ["1", "2", "3", "4", "5"].map(String::from).into();
        assert_eq!(connections(&tables.concat(), &sockets), 2);
        assert_eq!(connections("", &sockets), 0);
    }

    #[test]
    fn the_kernel_writes_them_so() {
        let before = callers(std::process::id());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _called = listener.accept().unwrap();
        assert!(callers(std::process::id()) > before);
    }
}
