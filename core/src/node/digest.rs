//! The fingerprint of an assignment: equal contents have equal digests, in this and in every later
//! version of the agent.
//!
//! It guards against mistakes (a coordinator that reuses a generation's number), not against an
//! attacker, so 128 bits of FNV-1a are enough (Fowler, Noll and Vo; draft-eastlake-fnv). Fields are
//! written one by one with their lengths. The standard library's `Hash` promises nothing across
//! compiler versions, and the ledger outlives both.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    layout::RoleShare,
    nccl::profile::Profile,
    run::{Assignment, Program, Seated},
    spec::Launch,
};

/// 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(String);

impl Digest {
    pub fn of(assignment: &Assignment) -> Self {
        // Destructured without `..`, so that a new field cannot be forgotten here.
        let Assignment {
            run,
            name,
            rendezvous,
            node_rank,
            node_count,
            proc_per_node,
            first_rank,
            world_size,
            store_host,
            hosts_store,
            // It says who may connect, not what runs, and older agents do not know this field.
            store_clients: _,
            command,
            args,
            env,
            env_files,
            working_dir,
            image,
            gpus,
            // Older agents do not know this field, and a run that one of them started goes on.
            hides_gpus: _,
            launch,
            // The same. It says what waits beside the run, not what runs.
            standbys: _,
            // The same. It says who may look at the ranks.
            inspect: _,
            stop_grace,
            step_pattern,
            checkpoint_pattern,
            restart_count,
            profile,
            profile_hash,
            fence_after,
            framework,
            layout,
            members,
            programs,
            // Older agents do not know this field. The owner of a job never changes.
            owner: _,
        } = assignment;
        let mut fnv = Fnv::default();
        fnv.text(run.job.as_str());
        fnv.number(run.generation.0);
        for text in [
            name.namespace.as_str(),
            &name.name,
            rendezvous,
            store_host.as_str(),
        ] {
            fnv.text(text);
        }
        for number in [
            node_rank,
            node_count,
            proc_per_node,
            first_rank,
            world_size,
            restart_count,
        ] {
            fnv.number((*number).into());
        }
        fnv.number((*hosts_store).into());
        for list in [command, args, gpus] {
            fnv.list(list);
        }
        fnv.variables(env);
        for text in [working_dir, step_pattern] {
            fnv.optional(text.as_deref());
        }
        fnv.launch(*launch);
        fnv.number(u64::try_from(stop_grace.as_millis()).unwrap_or(u64::MAX));
        // This field came later, so an assignment without it keeps its old digest. The hash
        // represents the whole profile.
        if *profile != Profile::default() {
            fnv.text(profile_hash);
        }
        fnv.later("image", image.as_deref());
        fnv.later("checkpoint", checkpoint_pattern.as_deref());
        for (name, file) in env_files {
            fnv.text("file");
            fnv.text(name);
            fnv.text(file);
        }
        if let Some(fence_after) = fence_after {
            fnv.text("fence");
            fnv.number(u64::try_from(fence_after.as_millis()).unwrap_or(u64::MAX));
        }
        if !framework.is_torch() {
            fnv.text("framework");
            fnv.text(framework.name());
        }
        layout.0.iter().for_each(|share| fnv.role(share));
        members.iter().for_each(|member| fnv.member(member));
        programs.iter().for_each(|program| fnv.program(program));
        Self(format!("{:032x}", fnv.0))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

struct Fnv(u128);

impl Default for Fnv {
    fn default() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Fnv {
    fn list(&mut self, list: &[String]) {
        self.number(list.len() as u64);
        list.iter().for_each(|text| self.text(text));
    }

    fn variables(&mut self, variables: &BTreeMap<String, String>) {
        self.number(variables.len() as u64);
        for (name, value) in variables {
            self.text(name);
            self.text(value);
        }
    }

    /// A field that older agents do not know. Without it the digest is theirs.
    fn later(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name);
            self.text(text);
        }
    }

    fn optional(&mut self, text: Option<&str>) {
        self.number(text.is_some().into());
        self.text(text.unwrap_or_default());
    }

    fn launch(&mut self, launch: Launch) {
        // Older agents read `exec` as `direct`, and a run that one of them started goes on.
        self.text(match launch {
            Launch::Exec => Launch::Direct.name(),
            launch => launch.name(),
        });
    }

    fn role(&mut self, share: &RoleShare) {
        self.text("role");
        self.text(&share.name);
        self.number(share.members.into());
        self.number(share.procs.into());
        self.number(share.service.into());
        if share.slots > 0 {
            self.text("slots");
            self.number(share.slots.into());
        }
    }

    fn member(&mut self, member: &Seated) {
        self.text("member");
        for number in [member.number, member.procs, member.first_rank] {
            self.number(number.into());
        }
        self.number(member.program as u64);
        self.list(&member.gpus);
    }

    fn program(&mut self, program: &Program) {
        self.text("program");
        for list in [&program.command, &program.args] {
            self.list(list);
        }
        for variables in [&program.env, &program.env_files] {
            self.variables(variables);
        }
        self.optional(program.working_dir.as_deref());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte))
                .wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::turn::tests::assignment;

    #[test]
    fn fnv_is_the_published_one() {
        let mut fnv = Fnv::default();
        fnv.bytes(b"foobar");
        assert_eq!(fnv.0, 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    /// A ledger from an older agent must mean the same to a newer one.
    #[test]
    fn stays_the_same_for_ever() {
        assert_eq!(
            Digest::of(&assignment("a", 1)).to_string(),
            "edd170ffea40b3b8a47da18548a6ad59"
        );
    }

    #[test]
    fn sees_every_field_and_every_border() {
        let first = assignment("a", 1);
        let mut others = Vec::new();
        let mut other = |change: fn(&mut Assignment)| {
            let mut assignment = first.clone();
            change(&mut assignment);
            others.push(assignment);
        };
        other(|a| a.rendezvous.push('x'));
        other(|a| a.node_rank += 1);
        other(|a| a.node_count += 1);
        other(|a| a.first_rank += 1);
        other(|a| a.hosts_store = !a.hosts_store);
        other(|a| a.args = vec!["train.py".into(), String::new()]);
        other(|a| a.args = vec!["train".into(), ".py".into()]);
        other(|a| (a.command, a.args) = (vec!["python3".into(), "train.py".into()], Vec::new()));
        other(|a| drop(a.env.insert("A".into(), "B".into())));
        other(|a| drop(a.env_files.insert("A".into(), "B".into())));
        other(|a| a.working_dir = Some(String::new()));
        other(|a| a.image = Some(String::new()));
        other(|a| a.step_pattern = Some(String::new()));
        other(|a| a.checkpoint_pattern = Some(String::new()));
        other(|a| a.stop_grace += std::time::Duration::from_millis(1));
        other(|a| a.gpus = vec!["GPU-1".into()]);
        other(|a| a.restart_count += 1);
        other(|a| (a.profile.rails, a.profile_hash) = (1, "1".into()));
        other(|a| (a.profile.rails, a.profile_hash) = (1, "2".into()));
        others.push(first);
        let digests: std::collections::BTreeSet<String> =
            others.iter().map(|a| Digest::of(a).to_string()).collect();
        assert_eq!(digests.len(), others.len());
    }

    #[test]
    fn does_not_see_who_may_connect() {
        let first = assignment("a", 1);
        let mut other = first.clone();
        other.store_clients.push([10, 0, 0, 1].into());
        assert_eq!(Digest::of(&first), Digest::of(&other));
    }
}
