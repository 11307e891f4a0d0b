//! What the processes of a framework other than torch are told about each other: pure projections of
//! the generation's roles, addresses and ports.
//!
//! Names and values are those that the operator of the framework's job kind sets, with addresses in place
//! of service names. Sources: Kubeflow's training operator 1.9 (`pkg/controller.v1/*`); and for `trainingjob`
//! elasticdeeplearning/trainingjob-operator (`pkg/controller/pod.go`), the open ancestor of AITrainingJob's.

use std::collections::BTreeMap;

use crate::{
    layout::{Place, RoleShare},
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
    let roles = cluster(assignment, peers);
    let members: Vec<(&str, Vec<String>)> = (roles.iter())
        .filter(|(_, members)| !members.is_empty())
        .map(|(role, members)| (*role, members.iter().map(ToString::to_string).collect()))
        .collect();
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
        Framework::Paddle => {
            say("PADDLE_JOB_ID", assignment.name.name.clone());
            say("PADDLE_NNODES", peers.len().to_string());
            say("PADDLE_MASTER", first.to_string());
            // By this the launcher knows whether it is the master. Upstream it looks its host's name up.
            if let Some(me) = peers.get(assignment.node_rank as usize) {
                say("POD_IP", me.host.clone());
            }
        }
        Framework::Trainingjob => training_job(assignment, own, &roles, &mut say),
        // The launcher is told of its hosts by `mpi`.
        Framework::Mpi | Framework::Plain => {}
    }
    say("MUSTER_MEMBERS", object(&members));
    env
}

/// The members of each role.
fn cluster<'a>(
    assignment: &'a Assignment,
    peers: &'a [Endpoint],
) -> Vec<(&'a str, &'a [Endpoint])> {
    let mut rest = peers;
    let share = |share: &'a RoleShare| {
        let (members, others) = rest.split_at(rest.len().min(share.members as usize));
        rest = others;
        (share.name.as_str(), members)
    };
    assignment.layout.0.iter().map(share).collect()
}

/// What the processes of an AITrainingJob read. Upstream all pods of a role have the ports of its template;
/// here each process has one port, which its node chose. So `ROLE_PORTS` of the process's own role is its
/// own port, and that of another role is the port of its first process. `ROLE_HOSTS` is right for all.
fn training_job(
    assignment: &Assignment,
    own: Place<'_>,
    roles: &[(&str, &[Endpoint])],
    say: &mut impl FnMut(&str, String),
) {
    let list = |words: Vec<String>| (words.len().to_string(), words.join(","));
    for (role, members) in roles {
        let is_own = *role == own.share.name;
        let told = members.get(if is_own { own.index as usize } else { 0 });
        let port = |member: &Endpoint| member.port.to_string();
        let hosts = members.iter().map(|member| member.host.clone());
        let name = role.to_ascii_uppercase();
        for (what, words) in [
            ("INSTANCES", hosts.collect()),
            ("PORTS", told.map(port).into_iter().collect()),
            ("HOSTS", members.iter().map(ToString::to_string).collect()),
        ] {
            let (count, words) = list(words);
            say(&format!("{name}_{what}"), words);
            say(&format!("{name}_{what}_NUM"), count);
        }
        if let Some(me) = told.filter(|_| is_own) {
            say("TRAININGJOB_SERVICE", me.host.clone());
            say("TRAININGJOB_PORTS", port(me));
        }
    }
    let restarts = assignment.restart_count.to_string();
    say("TRAININGJOB_NAME", assignment.name.name.clone());
    say("TRAININGJOB_NAMESPACE", assignment.name.namespace.clone());
    say("TRAININGJOB_REPLICA_NAME", own.share.name.clone());
    say("TRAININGJOB_REPLICA_INDEX", own.index.to_string());
    say("TRAININGJOB_REPLICA_RESTARTCOUNT", restarts);
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
    use crate::layout::Layout;

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
    fn paddle_is_told_its_master_and_the_number_of_nodes() {
        let env = member(Framework::Paddle, 1, &[("worker", 2)]);
        let told = ["PADDLE_MASTER", "PADDLE_NNODES", "PADDLE_JOB_ID", "POD_IP"];
        let job = crate::node::turn::tests::assignment("a", 1).name.name;
        assert_eq!(
            told.map(|name| &*env[name]),
            ["10.0.0.0:2220", "2", &*job, "10.0.0.1"]
        );
    }

    #[test]
    fn a_training_job_is_told_its_roles() {
        let roles = [("pserver", 1), ("trainer", 2), ("reader", 0)];
        let env = member(Framework::Trainingjob, 2, &roles);
        let told = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| env[*name].clone()).collect()
        };
        assert_eq!(
            told(&["TRAINER_INSTANCES", "TRAINER_PORTS", "TRAINER_HOSTS"]),
            ["10.0.0.1,10.0.0.2", "2222", "10.0.0.1:2221,10.0.0.2:2222"]
        );
        assert_eq!(
            told(&["PSERVER_INSTANCES", "PSERVER_PORTS", "PSERVER_HOSTS"]),
            ["10.0.0.0", "2220", "10.0.0.0:2220"]
        );
        assert_eq!(told(&["READER_HOSTS", "READER_PORTS"]), ["", ""]);
        let counts = ["INSTANCES_NUM", "PORTS_NUM", "HOSTS_NUM"];
        let counts = |role: &str| counts.map(|what| env[&format!("{role}_{what}")].clone());
        assert_eq!(counts("TRAINER"), ["2", "1", "2"]);
        assert_eq!(counts("READER"), ["0", "0", "0"]);
        let of_own = |what: &str| env[&format!("TRAININGJOB_{what}")].clone();
        assert_eq!(
            ["REPLICA_NAME", "REPLICA_INDEX", "SERVICE", "PORTS"].map(of_own),
            ["trainer", "1", "10.0.0.2", "2222"]
        );
        let job = crate::node::turn::tests::assignment("a", 1);
        assert_eq!(
            ["NAME", "NAMESPACE", "REPLICA_RESTARTCOUNT"].map(of_own),
            [
                job.name.name,
                job.name.namespace,
                job.restart_count.to_string()
            ]
        );
    }

    #[test]
    fn what_is_told_cannot_be_set_by_a_job() {
        for (framework, role) in [
            (Framework::Paddle, "worker"),
            (Framework::Trainingjob, "trainer"),
        ] {
            for name in member(framework, 1, &[(role, 2)]).keys() {
                let is_set = framework.sets(name) || framework.sets_of_role(role, name);
                assert!(is_set || name == "MUSTER_MEMBERS", "{name}");
            }
        }
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
