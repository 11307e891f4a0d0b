use super::*;
use crate::node::turn::tests::assignment;

fn of(owner: Option<Owner>) -> Assignment {
    Assignment {
        owner,
        ..assignment("a", 1)
    }
}

fn user(name: &str) -> Owner {
    Owner::User(name.into())
}

/// The answer of a machine with these lines, without a list.
fn asked(owner: &Owner, passwd: &str, groups: &str) -> Result<Account, String> {
    let sought = sought(&of(Some(owner.clone())), None).map_err(|refusal| refusal.reason)?;
    of_machine(owner, &sought, passwd, groups, UID_MIN).map_err(|refusal| refusal.reason)
}

#[test]
fn an_owner_is_the_account_of_the_same_name() {
    let account = asked(
        &user("ann"),
        "ann:x:1007:100:Ann,,,:/home/ann:/bin/zsh\n",
        "100 44 110\n",
    )
    .unwrap();
    assert_eq!(account.numbers(), "1007:100:44,110");
    let env: BTreeMap<String, String> = account.env().collect();
    let shown: Vec<&str> = env.values().map(String::as_str).collect();
    assert_eq!(shown, ["/home/ann", "ann", "/bin/zsh", "ann"]);
    let bare = asked(&Owner::Local(1008), "bob:x:1008:1008:::\n", "1008").unwrap();
    assert_eq!(
        (
            bare.numbers().as_str(),
            bare.home.as_str(),
            bare.shell.as_str()
        ),
        ("1008:1008:", "/", "/bin/sh")
    );
}

#[test]
fn nobody_becomes_root_or_an_account_of_the_system() {
    let why = |owner: Owner, line: &str| asked(&owner, line, "").unwrap_err();
    assert!(why(user("toor"), "toor:x:0:0::/root:/bin/sh").contains("no job runs as root"));
    assert!(why(Owner::Local(0), "root:x:0:0::/root:/bin/sh").contains("no job runs as root"));
    let of_system = why(user("postgres"), "postgres:x:999:999::/:/bin/sh");
    assert!(
        of_system.contains("uid 999") && of_system.contains("--user-map"),
        "{of_system}"
    );
    // setresuid(-1) changes nothing, so such a process would stay root.
    for line in [
        "x:x:4294967295:5::/:/bin/sh",
        "x:x:1005:4294967295::/:/bin/sh",
    ] {
        assert!(
            why(user("x"), line).contains("no number of a user"),
            "{line}"
        );
    }
    assert!(asked(&user("x"), "x:x:1005:5::/:/bin/sh", "5 4294967295").is_err());
}

#[test]
fn who_has_no_account_is_told_so_and_no_node_pays() {
    assert_eq!(
        asked(&user("ann"), "", "").unwrap_err(),
        "the job's owner ann has no account: there is no user ann"
    );
    // What a program could take for an option, a number of somebody else, or a path.
    for name in ["-r", "1000", "a/b", "a b", "", "ann:x:0:0"] {
        let refusal = sought(&of(Some(user(name))), None).unwrap_err();
        assert_eq!(refusal.due_to, DueTo::Account, "{name}");
        assert!(
            refusal.reason.contains("cannot be the name of an account"),
            "{}",
            refusal.reason
        );
    }
    let refusal = sought(&of(None), None).unwrap_err();
    assert_eq!(refusal.due_to, DueTo::Account);
    assert!(
        refusal.reason.contains("has no owner"),
        "{}",
        refusal.reason
    );
}

#[test]
fn an_operators_list_decides_alone() {
    let map = UserMap::parse(
        "# who is who\nann  ann.smith\nbob 70007:70008:44,110:/home/bob # no login\n1000 1000:1000\nsvc postgres\n",
    )
    .unwrap();
    assert_eq!(map.len(), 4);
    let look = |owner: Owner| sought(&of(Some(owner)), Some(&map));
    assert_eq!(
        look(user("ann")),
        Ok(Sought::OfMachine {
            key: "ann.smith".into(),
            listed: true
        })
    );
    let Ok(Sought::Known(bob)) = look(user("bob")) else {
        panic!("bob has numbers")
    };
    assert_eq!(
        (
            bob.numbers().as_str(),
            bob.name.as_str(),
            bob.home.as_str(),
            bob.shell.as_str()
        ),
        ("70007:70008:44,110", "bob", "/home/bob", "/bin/sh")
    );
    assert!(matches!(look(Owner::Local(1000)), Ok(Sought::Known(_))));
    let refusal = look(user("eve")).unwrap_err();
    assert_eq!(refusal.due_to, DueTo::Account);
    assert!(
        refusal.reason.contains("eve is not in the list"),
        "{}",
        refusal.reason
    );
    // It names an account of the system, so that one runs jobs.
    let svc = look(user("svc")).unwrap();
    let line = "postgres:x:999:999::/:/bin/sh";
    assert_eq!(
        of_machine(&user("svc"), &svc, line, "", UID_MIN)
            .unwrap()
            .uid,
        999
    );
    // Not even the operator makes somebody root.
    let root = "postgres:x:0:0::/:/bin/sh";
    assert!(of_machine(&user("svc"), &svc, root, "", UID_MIN).is_err());
}

#[test]
fn a_wrong_line_is_named() {
    for (text, why) in [
        ("ann\n", "line 1: \"ann\" is not OWNER ACCOUNT"),
        ("ann a b\n", "line 1: \"ann a b\" is not OWNER ACCOUNT"),
        ("\nann 0:0\n", "line 2: no job runs as root (uid 0)"),
        (
            "ann x:5\n",
            "line 1: \"x\" in \"x:5\" is not the number of a user",
        ),
        (
            "ann 5:\n",
            "line 1: \"\" in \"5:\" is not the number of a group",
        ),
        (
            "ann 5:5:-1\n",
            "line 1: \"-1\" in \"5:5:-1\" is not the number of a group",
        ),
        (
            "ann 4294967295:5\n",
            "line 1: 4294967295 is no number of a user or group",
        ),
        (
            "ann 5:5::home\n",
            "line 1: \"home\" is not an absolute path",
        ),
        (
            "ann 1007\n",
            "line 1: 1007 needs a group as well, as in 1007:1007",
        ),
        ("ann a\nann b\n", "line 2: ann is there twice"),
        (
            "ann -x\n",
            "line 1: \"-x\" cannot be the name of an account",
        ),
    ] {
        assert_eq!(UserMap::parse(text).unwrap_err(), why, "{text:?}");
    }
    assert!(UserMap::parse("").unwrap().is_empty());
}

#[test]
fn the_machine_says_where_its_people_begin() {
    assert_eq!(
        uid_min("# UID_MIN 5\nUID_MIN\t\t  500\nUID_MAX 60000\n"),
        500
    );
    assert_eq!(uid_min(""), UID_MIN);
}
