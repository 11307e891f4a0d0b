//! A start, as `core::node::launch` decides it, in the words of the runner's wire. Nothing is decided here.

use muster_core::node::{lane::Lane, launch, mpi};
use muster_runner::wire;

pub(super) fn of(started: launch::Started) -> wire::StartSpec {
    let launch = started.launch;
    wire::StartSpec {
        order: started.order.map(order),
        program: launch.program,
        args: launch.args,
        env: launch.env,
        env_files: started.env_files,
        cwd: launch.dir.into(),
        ranks: started.ranks,
        first_rank: started.first_rank,
        mpi: started.mpi.map(part),
        members: started.members.into_iter().map(member).collect(),
        restartable: started.restartable,
    }
}

fn order(order: launch::Order) -> wire::Order {
    wire::Order {
        lane: match order.lane {
            Lane::Parked => wire::Lane::Parked,
            Lane::Fork => wire::Lane::Fork,
            // These have no launcher, and without one the wire's direct says all of them.
            Lane::Direct | Lane::Exec | Lane::Cold => wire::Lane::Direct,
        },
        options: order.options,
        argv: order.argv,
        command: order.command,
        run_id: order.run_id,
        peer_lost: order.peer_lost,
        lacks: order.lacks,
        inspect: order.inspect,
        collectives: order.collectives,
    }
}

fn member(member: launch::Member) -> wire::MemberSpec {
    wire::MemberSpec {
        number: member.number,
        first_rank: member.first_rank,
        ranks: member.ranks,
        command: member.command,
        env: member.env,
        env_files: member.env_files,
        cwd: member.dir.into(),
        restartable: member.restartable,
    }
}

fn part(part: launch::Mpi) -> wire::MpiSpec {
    let host = |host: mpi::Host| wire::HostSpec {
        at: host.at.to_string(),
        name: host.name,
        key: host.key.0,
    };
    match part {
        launch::Mpi::Launcher(launcher) => wire::MpiSpec::Launcher(wire::LauncherSpec {
            own_name: launcher.own_name,
            own_address: Some(launcher.own_address),
            hosts: launcher.hosts.into_iter().map(host).collect(),
            files: launcher.files,
        }),
        launch::Mpi::Lender(lender, key) => wire::MpiSpec::Lender(wire::LenderSpec {
            own_name: lender.own_name,
            listen: lender.listen.to_string(),
            key: key.0,
        }),
    }
}
