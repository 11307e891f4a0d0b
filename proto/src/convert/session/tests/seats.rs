//! Wrong messages about members that share a node are refused.

use super::*;

#[test]
fn every_wrong_member_of_a_shared_node_is_refused_by_field() {
    let member = |number, first_rank| v1::Seated {
        number,
        first_rank,
        procs: 1,
        ..Default::default()
    };
    let read = |members: Vec<v1::Seated>, programs: usize| {
        let assignment = v1::Assignment {
            namespace: "default".into(),
            name: "digits".into(),
            rendezvous: "r".into(),
            node_rank: 1,
            node_count: 4,
            first_rank: 1,
            proc_per_node: 2,
            world_size: 5,
            store_host: "n1".into(),
            launch: "auto".into(),
            members,
            programs: vec![v1::Program::default(); programs],
            ..Default::default()
        };
        let target = Some(desired_run::Target::Ready(assignment));
        let run = v1::DesiredRun {
            job_uid: "0a".into(),
            generation: 1,
            target,
        };
        desired_from_wire(v1::Desired {
            runs: vec![run],
            ..Default::default()
        })
    };
    assert!(read(vec![member(1, 1), member(3, 4)], 1).is_ok());
    let of_second = |program| v1::Seated {
        program,
        ..member(3, 4)
    };
    let cases = [
        (
            read(vec![member(1, 1), member(1, 4)], 1),
            "members[1].number: is 1, must be between 2 and 3",
        ),
        (
            read(vec![member(1, 1), member(4, 4)], 1),
            "members[1].number: is 4, must be between 2 and 3",
        ),
        (
            read(vec![member(1, 1), member(2, 1)], 1),
            "members[1].first_rank: 1 is no free rank of 5",
        ),
        (
            read(vec![member(1, 1), member(2, 5)], 1),
            "members[1].first_rank: 5 is no free rank of 5",
        ),
        (
            read(vec![member(1, 1), of_second(1)], 1),
            "members[1].program: is 1, must be between 0 and 0",
        ),
        (
            read(vec![member(1, 1), member(3, 4)], 0),
            "members[0].program: is missing",
        ),
        (
            read(vec![member(1, 1)], 1),
            "members: begin at another member than 1 or have 1 ranks, not 2",
        ),
        (
            read(vec![member(2, 1), member(3, 4)], 1),
            "members: begin at another member than 1 or have 2 ranks, not 2",
        ),
        (
            read(Vec::new(), 17),
            "programs: has 17 items, at most 16 are allowed",
        ),
    ];
    for (read, error) in cases {
        assert_eq!(
            read.unwrap_err().to_string(),
            format!("desired.runs[0].ready.{error}")
        );
    }
}
