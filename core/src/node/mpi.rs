//! What the members of an MPI job are told: the launcher, its hosts; each worker, where it listens for
//! the launcher. Pure projections of the generation's roles, addresses and keys.
//!
//! The launcher runs the job's `mpirun`. It finds a hostfile and a program for remote starts by the
//! variables that Open MPI 4 and 5 (PRRTE), MPICH's hydra and Intel MPI read; each reads its own. The
//! host names are those of Kubeflow's pods, `JOB-worker-0`. Nobody has to resolve the name of another host.

use std::{collections::BTreeMap, net::IpAddr};

use crate::{
    layout::Place,
    nccl::environment,
    node::torchrun::{RUN_DIR, Site},
    run::{Assignment, Endpoint, Key},
    spec::LAUNCHER,
};

/// The hostfile of Open MPI, in the run's directory: `HOST slots=N`.
pub const HOSTFILE: &str = "hostfile";
/// The hostfile of MPICH and Intel MPI: `HOST:N`.
const HOSTFILE_HYDRA: &str = "hostfile.hydra";
/// A program that prints the hosts as `HOST:N`. Horovod's elastic mode calls it again and again.
const DISCOVERY: &str = "discover_hosts.sh";
/// The script has no names of machines in it, so none needs quotes.
const DISCOVER: &str = "#!/bin/sh\nexec cat \"${0%/*}/hostfile.hydra\"\n";
/// The folder, in the run's directory, with the programs for remote starts.
pub const BIN: &str = "bin";
/// The program for remote starts.
pub const RSH: &str = "muster-rsh";

/// Linux takes no longer name of a machine.
const HOST_NAME_MAX: usize = 64;

/// What one member does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Launcher(Launcher),
    Lender(Lender),
}

/// The member that runs the job's command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// The name that its processes see as the machine's. `None`: the machine's own.
    pub own_name: Option<String>,
    /// The address of that name.
    pub own_address: String,
    pub hosts: Vec<Host>,
    /// Files to be written into the run's directory, by name. One that begins with `#!` is a program.
    pub files: BTreeMap<String, String>,
}

/// A node that lends itself to the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    pub at: Endpoint,
    pub key: Key,
}

/// A member that runs only what the launcher asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lender {
    /// As in [`Launcher`].
    pub own_name: Option<String>,
    pub listen: Endpoint,
}

/// This node's part in an MPI job. `keys` are those of all members, by node rank; only the launcher has
/// them. `None`: the job is not of MPI. The error is for the user.
pub fn part(
    assignment: &Assignment,
    peers: &[Endpoint],
    keys: &[Key],
    site: &Site,
) -> Result<Option<Part>, String> {
    let place = assignment.layout.place(assignment.node_rank);
    let Some(place) = place.filter(|_| assignment.framework == crate::spec::Framework::Mpi) else {
        return Ok(None);
    };
    let own = peers.get(assignment.node_rank as usize);
    let own = own.ok_or("the coordinator did not tell where this node's process listens")?;
    let shared = peers.iter().filter(|peer| peer.host == own.host).count() > 1;
    let name = host_name(assignment, place);
    // MPI takes two members with one host name for one machine.
    let own_name = shared.then(|| name.clone());
    if place.share.name != LAUNCHER {
        return Ok(Some(Part::Lender(Lender {
            own_name,
            listen: own.clone(),
        })));
    }
    if keys.len() != peers.len() {
        return Err("the coordinator did not tell the keys of the workers".into());
    }
    let members = peers
        .iter()
        .zip(keys)
        .zip(0..)
        .filter_map(|((at, key), rank)| {
            let place = assignment.layout.place(rank)?;
            let host = Host {
                name: host_name(assignment, place),
                at: at.clone(),
                key: key.clone(),
            };
            Some((place, host))
        });
    let members: Vec<(Place<'_>, Host)> = members.collect();
    // mpirun starts ranks on its own host by itself, if it knows the name for its own.
    let here = own_name
        .clone()
        .unwrap_or_else(|| match &*site.report.hostname {
            "" => "localhost".to_owned(),
            machine => machine.to_owned(),
        });
    let slots = members.iter().filter(|(place, _)| place.share.slots > 0);
    let lines: Vec<(&str, u32)> = slots
        .map(|(place, host)| match &*place.share.name {
            LAUNCHER => (&*here, place.share.slots),
            _ => (&*host.name, place.share.slots),
        })
        .collect();
    let file = |line: fn(&(&str, u32)) -> String| lines.iter().map(line).collect::<String>();
    let files = BTreeMap::from([
        (
            HOSTFILE.to_owned(),
            file(|(host, slots)| format!("{host} slots={slots}\n")),
        ),
        (
            HOSTFILE_HYDRA.to_owned(),
            file(|(host, slots)| format!("{host}:{slots}\n")),
        ),
        (DISCOVERY.to_owned(), DISCOVER.to_owned()),
    ]);
    let lenders = members
        .into_iter()
        .filter(|(place, _)| place.share.name != LAUNCHER);
    Ok(Some(Part::Launcher(Launcher {
        own_name,
        own_address: own.host.clone(),
        hosts: lenders.map(|(_, host)| host).collect(),
        files,
    })))
}

/// The name of a member's host: `JOB-worker-0`, or without the job's name if that is too long.
fn host_name(assignment: &Assignment, place: Place<'_>) -> String {
    let member = format!("{}-{}", place.share.name, place.index);
    let long = format!("{}-{member}", assignment.name.name);
    match long.len() <= HOST_NAME_MAX {
        true => long,
        false => member,
    }
}

/// The launcher's variables beside those of a launch (`env`): who starts programs on the hosts, and
/// which hosts there are. Those that only suggest something leave the job's own alone.
pub fn environment(env: &BTreeMap<String, String>, site: &Site) -> BTreeMap<String, String> {
    let dir = &site.run_dir;
    let (bin, rsh) = (format!("{dir}/{BIN}"), format!("{dir}/{BIN}/{RSH}"));
    let (hosts, hydra) = (
        format!("{dir}/{HOSTFILE}"),
        format!("{dir}/{HOSTFILE_HYDRA}"),
    );
    let path = match env.get("PATH") {
        Some(path) => format!("{bin}:{path}"),
        None => format!("{bin}:/usr/local/bin:/usr/bin:/bin"),
    };
    let told = [
        (RUN_DIR, &**dir),
        // Scripts that call ssh themselves, and Open MPI without its variables.
        ("PATH", &*path),
        // Open MPI 4, and 5 with PRRTE.
        ("OMPI_MCA_plm_rsh_agent", &*rsh),
        ("PRTE_MCA_plm_ssh_agent", &rsh),
        ("OMPI_MCA_orte_default_hostfile", &hosts),
        ("PRTE_MCA_prte_default_hostfile", &hosts),
        // MPICH.
        ("HYDRA_LAUNCHER", "ssh"),
        ("HYDRA_LAUNCHER_EXEC", &rsh),
        ("HYDRA_HOST_FILE", &hydra),
        // Intel MPI.
        ("I_MPI_HYDRA_BOOTSTRAP", "ssh"),
        ("I_MPI_HYDRA_BOOTSTRAP_EXEC", &rsh),
        ("I_MPI_HYDRA_HOST_FILE", &hydra),
    ];
    let told = told.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut told = BTreeMap::from(told);
    let mut suggest = |name: &str, value: &str| {
        if !env.contains_key(name) {
            told.insert(name.to_owned(), value.to_owned());
        }
    };
    // Only the launcher reaches the hosts. Otherwise daemons would start further daemons.
    suggest("OMPI_MCA_plm_rsh_no_tree_spawn", "1");
    suggest("PRTE_MCA_plm_ssh_no_tree_spawn", "1");
    // If the agent runs as root, its operator has decided that jobs run as root.
    for name in [
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
        "PRTE_ALLOW_RUN_AS_ROOT",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
    ] {
        suggest(name, "1");
    }
    let loopback = (site.report.address.parse()).is_ok_and(|own: IpAddr| own.is_loopback());
    if loopback {
        // By default Open MPI's ranks do not use it. Its daemons find it by themselves.
        suggest("OMPI_MCA_btl_tcp_if_include", "lo");
    }
    // hydra names this host by an address of the interface. Its name need not resolve then.
    let interface = environment::socket_interface(&site.report).map(|(name, _)| name);
    if let Some(name) = interface.or(loopback.then_some("lo")) {
        suggest("HYDRA_IFACE", name);
        suggest("I_MPI_HYDRA_IFACE", name);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        layout::{Layout, RoleShare},
        node::torchrun::EnvIs,
        node_report::NodeReport,
        spec::Framework,
    };

    fn assignment(node_rank: u32, launcher_slots: u32) -> Assignment {
        let share = |name: &str, members, slots| RoleShare {
            name: name.into(),
            members,
            procs: 1,
            slots,
            service: false,
            restarts_alone: false,
        };
        Assignment {
            framework: Framework::Mpi,
            node_rank,
            layout: Layout(vec![
                share(LAUNCHER, 1, launcher_slots),
                share("worker", 2, 4),
            ]),
            ..crate::node::turn::tests::assignment("pi", 1)
        }
    }

    fn site(hostname: &str, address: &str) -> Site {
        Site {
            node: "n0".into(),
            report: NodeReport {
                hostname: hostname.into(),
                address: address.into(),
                ..NodeReport::default()
            },
            run_dir: "/r".into(),
            env: BTreeMap::new(),
            env_is: EnvIs::Agents,
            account: None,
        }
    }

    fn peers(hosts: [&str; 3]) -> Vec<Endpoint> {
        let peer = |(host, port): (&str, u16)| Endpoint {
            host: host.into(),
            port,
        };
        hosts.into_iter().zip(5_000..).map(peer).collect()
    }

    fn keys() -> Vec<Key> {
        ["a", "b", "c"].map(|key| Key(key.into())).to_vec()
    }

    fn launcher(slots: u32, hosts: [&str; 3]) -> Launcher {
        let told = part(
            &assignment(0, slots),
            &peers(hosts),
            &keys(),
            &site("m0", hosts[0]),
        );
        match told.unwrap().unwrap() {
            Part::Launcher(launcher) => launcher,
            other => panic!("{other:?}"),
        }
    }

    const APART: [&str; 3] = ["10.0.0.7", "10.0.0.8", "10.0.0.9"];

    #[test]
    fn a_launcher_knows_its_hosts_and_starts_no_rank_on_its_own() {
        let told = launcher(0, APART);
        assert_eq!(told.own_name, None);
        assert_eq!(
            told.files["hostfile"],
            "pi-worker-0 slots=4\npi-worker-1 slots=4\n"
        );
        assert_eq!(
            told.files["hostfile.hydra"],
            "pi-worker-0:4\npi-worker-1:4\n"
        );
        let second = Host {
            name: "pi-worker-1".into(),
            at: peers(APART)[2].clone(),
            key: Key("c".into()),
        };
        assert!(told.files["discover_hosts.sh"].starts_with("#!/bin/sh\n"));
        assert_eq!(told.own_address, "10.0.0.7");
        assert_eq!(told.hosts.len(), 2);
        assert_eq!(told.hosts[1], second);
    }

    #[test]
    fn a_launcher_with_slots_is_the_first_host_by_the_name_that_mpirun_knows_for_its_own() {
        let first = |told: Launcher| told.files["hostfile"].lines().next().unwrap().to_owned();
        assert_eq!(first(launcher(2, APART)), "m0 slots=2");
        let together = launcher(2, ["127.0.0.1"; 3]);
        assert_eq!(together.own_name.as_deref(), Some("pi-launcher-0"));
        assert_eq!(first(together), "pi-launcher-0 slots=2");
    }

    #[test]
    fn a_worker_is_told_where_to_listen_and_no_key_of_another() {
        let told = |hosts| part(&assignment(2, 0), &peers(hosts), &[], &site("m2", hosts[2]));
        let lender = |own_name: Option<&str>, at: &str| {
            let listen = Endpoint {
                host: at.into(),
                port: 5_002,
            };
            let own_name = own_name.map(str::to_owned);
            Ok(Some(Part::Lender(Lender { own_name, listen })))
        };
        assert_eq!(told(APART), lender(None, "10.0.0.9"));
        assert_eq!(
            told(["127.0.0.1"; 3]),
            lender(Some("pi-worker-1"), "127.0.0.1")
        );
    }

    #[test]
    fn a_launcher_without_keys_is_refused_and_another_framework_has_no_part() {
        let site = site("m0", "10.0.0.7");
        assert!(part(&assignment(0, 0), &peers(APART), &keys()[1..], &site).is_err());
        let other = Assignment {
            framework: Framework::Plain,
            ..assignment(0, 0)
        };
        assert_eq!(part(&other, &peers(APART), &[], &site), Ok(None));
    }

    #[test]
    fn every_implementation_finds_its_variables_and_a_job_may_choose_its_interface() {
        let own = [("PATH", "/opt/mpi/bin"), ("HYDRA_IFACE", "ib0")];
        let own = own
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let env = environment(&own, &site("m0", "127.0.0.1"));
        assert_eq!(env["PATH"], "/r/bin:/opt/mpi/bin");
        for agent in [
            "OMPI_MCA_plm_rsh_agent",
            "PRTE_MCA_plm_ssh_agent",
            "HYDRA_LAUNCHER_EXEC",
            "I_MPI_HYDRA_BOOTSTRAP_EXEC",
        ] {
            assert_eq!(env[agent], "/r/bin/muster-rsh");
            assert!(Framework::Mpi.sets(agent), "a job could set {agent}");
        }
        assert_eq!(env["PRTE_MCA_prte_default_hostfile"], "/r/hostfile");
        assert_eq!(env["HYDRA_HOST_FILE"], "/r/hostfile.hydra");
        assert_eq!(env["OMPI_MCA_btl_tcp_if_include"], "lo");
        assert!(!env.contains_key("HYDRA_IFACE"));
        let apart = environment(&own, &site("m0", "10.0.0.7"));
        assert!(!apart.contains_key("OMPI_MCA_btl_tcp_if_include"));
    }
}
