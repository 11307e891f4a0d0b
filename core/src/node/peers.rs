//! What the processes of a framework other than torch are told about each other: pure projections of
//! the generation's roles, addresses and ports.
//!
//! Names and values are those that Kubeflow's training operator 1.9 sets for the job kind of each
//! framework (`pkg/controller.v1/*`), with addresses in place of service names.

use std::collections::BTreeMap;

use crate::{
    layout::Place,
    run::{Assignment, Endpoint},
    spec::Framework,
};

/// The variables of this node's process. `peers` are all members, by node rank. They win over the
/// job's own variables of these names.
pub fn told(assignment: &Assignment, peers: &[Endpoint]) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    let Some(own) = assignment.layout.place(assignment.node_rank) else {
        return env;
    };
    let mut say = |name: &str, value: String| drop(env.insert(name.to_owned(), value));
    let Some(first) = peers.first().filter(|_| assignment.framework.tells_peers()) else {
        return env;
    };
    let members = cluster(assignment, peers);
    match assignment.framework {
        Framework::Torch => {}
        Framework::Tensorflow => {
            // A job of one process has no TF_CONFIG upstream, and TensorFlow would start a server for
            // nothing.
            if peers.len() > 1 {
                say("TF_CONFIG", tf_config(&members, own));
            }
        }
        Framework::Jax => {
            let address = first.to_string();
            say("JAX_COORDINATOR_ADDRESS", address.clone());
            say("COORDINATOR_ADDRESS", first.host.clone());
            say("COORDINATOR_PORT", first.port.to_string());
            say("NUM_PROCESSES", peers.len().to_string());
            say("PROCESS_ID", assignment.node_rank.to_string());
            // `jax.distributed.initialize()` without arguments finds the number of processes only
            // where it knows the cluster. It knows Open MPI's variables (jax/_src/clusters/ompi_cluster.py).
            say("OMPI_MCA_orte_hnp_uri", format!("0.0;tcp://{address}"));
            say("OMPI_COMM_WORLD_SIZE", peers.len().to_string());
            say("OMPI_COMM_WORLD_RANK", assignment.node_rank.to_string());
            say("OMPI_COMM_WORLD_LOCAL_RANK", "0".to_owned());
        }
        Framework::Xgboost => {
            let workers: Vec<&str> = peers.iter().skip(1).map(|peer| &*peer.host).collect();
            say("MASTER_ADDR", first.host.clone());
            say("MASTER_PORT", first.port.to_string());
            // A worker's own port. The master is told the first worker's, because it uses MASTER_PORT itself.
            if let Some(worker) = peers.get(assignment.node_rank.max(1) as usize) {
                say("WORKER_PORT", worker.port.to_string());
                say("WORKER_ADDRS", workers.join(","));
            }
        }
        // The launcher is told of its hosts by `mpi`.
        Framework::Mpi | Framework::Plain => {}
    }
    say("MUSTER_MEMBERS", object(&members));
    env
}

/// The addresses of each role's members.
fn cluster<'a>(assignment: &'a Assignment, peers: &[Endpoint]) -> Vec<(&'a str, Vec<String>)> {
    let mut peers = peers.iter();
    let share = |share: &'a crate::layout::RoleShare| {
        let members = peers.by_ref().take(share.members as usize);
        (
            share.name.as_str(),
            members.map(ToString::to_string).collect(),
        )
    };
    let all = assignment.layout.0.iter().map(share);
    all.filter(|(_, members): &(_, Vec<String>)| !members.is_empty())
        .collect()
}

fn tf_config(members: &[(&str, Vec<String>)], own: Place<'_>) -> String {
    format!(
        r#"{{"cluster":{},"task":{{"type":"{}","index":{}}},"environment":"cloud"}}"#,
        object(members),
        own.share.name,
        own.index
    )
}

/// A JSON object of lists. Names are labels, and members are addresses, so nothing needs a quote.
fn object(members: &[(&str, Vec<String>)]) -> String {
    let list = |(name, members): &(&str, Vec<String>)| {
        format!(r#""{name}":["{}"]"#, members.join(r#"",""#))
    };
    format!(
        "{{{}}}",
        members.iter().map(list).collect::<Vec<_>>().join(",")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layout, RoleShare};

    fn member(
        framework: Framework,
        node_rank: u32,
        roles: &[(&str, u32)],
    ) -> BTreeMap<String, String> {
        let share = |(name, members): &(&str, u32)| RoleShare {
            name: (*name).into(),
            members: *members,
            procs: 1,
            slots: 0,
            service: false,
            restarts_alone: false,
        };
        let assignment = Assignment {
            framework,
            node_rank,
            layout: Layout(roles.iter().map(share).collect()),
            ..crate::node::turn::tests::assignment("a", 1)
        };
        let peer = |n: u32| Endpoint {
            host: format!("10.0.0.{n}"),
            port: 2220 + n as u16,
        };
        let peers: Vec<Endpoint> = (0..assignment.layout.members()).map(peer).collect();
        told(&assignment, &peers)
    }

    #[test]
    fn tensorflow_is_told_the_cluster_and_its_task() {
        let roles = [("chief", 1), ("ps", 0), ("worker", 2)];
        let env = member(Framework::Tensorflow, 2, &roles);
        let config = r#"{"cluster":{"chief":["10.0.0.0:2220"],"worker":["10.0.0.1:2221","10.0.0.2:2222"]},"task":{"type":"worker","index":1},"environment":"cloud"}"#;
        assert_eq!(env["TF_CONFIG"], config);
        let alone = member(Framework::Tensorflow, 0, &[("worker", 1)]);
        assert!(!alone.contains_key("TF_CONFIG"), "{alone:?}");
    }

    #[test]
    fn jax_is_told_where_process_0_is() {
        let env = member(Framework::Jax, 1, &[("worker", 2)]);
        let told = [
            "JAX_COORDINATOR_ADDRESS",
            "COORDINATOR_ADDRESS",
            "COORDINATOR_PORT",
            "NUM_PROCESSES",
            "PROCESS_ID",
        ];
        assert_eq!(
            told.map(|name| &*env[name]),
            ["10.0.0.0:2220", "10.0.0.0", "2220", "2", "1"]
        );
    }

    #[test]
    fn xgboost_is_told_the_master_and_the_workers() {
        let roles = [("master", 1), ("worker", 2)];
        let env = member(Framework::Xgboost, 1, &roles);
        let told = ["MASTER_ADDR", "MASTER_PORT", "WORKER_PORT", "WORKER_ADDRS"];
        assert_eq!(
            told.map(|name| &*env[name]),
            ["10.0.0.0", "2220", "2221", "10.0.0.1,10.0.0.2"]
        );
        let master = member(Framework::Xgboost, 0, &roles);
        assert_eq!(
            (&*master["MASTER_PORT"], &*master["WORKER_PORT"]),
            ("2220", "2221")
        );
        let alone = member(Framework::Xgboost, 0, &[("master", 1)]);
        assert!(!alone.contains_key("WORKER_ADDRS"));
    }

    #[test]
    fn a_plain_job_is_told_its_members() {
        let env = member(Framework::Plain, 0, &[("server", 1), ("worker", 1)]);
        assert_eq!(
            env["MUSTER_MEMBERS"],
            r#"{"server":["10.0.0.0:2220"],"worker":["10.0.0.1:2221"]}"#
        );
        assert!(member(Framework::Torch, 1, &[("master", 1), ("worker", 1)]).is_empty());
    }

    #[test]
    fn an_ipv6_address_has_brackets_before_its_port() {
        let peer = Endpoint {
            host: "fd00::1".into(),
            port: 9,
        };
        assert_eq!(peer.to_string(), "[fd00::1]:9");
    }
}
