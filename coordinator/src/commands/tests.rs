use clap::CommandFactory;

use super::*;

fn walk(command: &clap::Command, path: &str, visit: &mut dyn FnMut(&str, &clap::Command)) {
    for below in command.get_subcommands() {
        if below.get_name() != "help" {
            let path = format!("{path} {}", below.get_name());
            visit(&path, below);
            walk(below, &path, visit);
        }
    }
}

#[test]
fn every_command_says_what_it_is_and_shows_how() {
    Command::command().debug_assert();
    let mut count = 0;
    walk(
        &Command::command(),
        "muster-coordinator",
        &mut |path, command| {
            count += 1;
            let about = command.get_about().unwrap_or_default().to_string();
            assert!(
                (10..=80).contains(&about.len()) && !about.ends_with('.'),
                "{path}: {about}"
            );
            let long = command.get_long_about().unwrap_or_default().to_string();
            assert!(
                long.contains("\n\n"),
                "{path}: a paragraph under the summary"
            );
            let examples = command.get_after_help().unwrap_or_default().to_string();
            let examples = examples.strip_prefix("EXAMPLES:\n").expect(path).to_owned();
            let lines: Vec<&str> = (examples.lines().map(str::trim))
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
                .collect();
            assert!(
                lines.iter().any(|line| line.starts_with(path)),
                "{path}: an example calls it"
            );
            for line in lines {
                if let Err(error) = Command::try_parse_from(line.split_whitespace()) {
                    panic!("{path}: {line}: {error}");
                }
            }
            for arg in command.get_arguments() {
                assert!(
                    arg.get_help().is_some(),
                    "{path}: {} is explained",
                    arg.get_id()
                );
            }
        },
    );
    assert!(count >= 16, "only {count} commands were found");
}

#[test]
fn the_trail_says_who_and_what_but_no_secret() {
    let changes = |line: &str| -> Vec<String> {
        let words = ["muster-coordinator"].into_iter().chain(line.split(' '));
        let command = Command::try_parse_from(words.chain(["--state-dir", "/s"])).unwrap();
        let changes = command.changes().into_iter();
        changes
            .map(|change| format!("{} | {}", change.what, change.object))
            .collect()
    };
    assert_eq!(
        changes("token create --user ann --role submitter -n a -n b"),
        [
            "user set --role submitter --namespace a --namespace b | user/ann",
            "token create --user | user/ann"
        ]
    );
    assert_eq!(
        changes("token create --host --uses 10"),
        ["token create --host --uses 10 | "]
    );
    assert_eq!(
        changes("token create --host n1"),
        ["token create --host | host/n1"]
    );
    assert_eq!(
        changes("token delete 5f2a90c1aabbccddeeff00112233445566.0123456789abcdef"),
        ["token delete | token/5f2a90c1"]
    );
    assert_eq!(
        changes("user set ann --role viewer -A"),
        ["user set --role viewer --all-namespaces | user/ann"]
    );
    assert_eq!(changes("user delete ann"), ["user delete | user/ann"]);
    assert_eq!(changes("deny host/n1"), ["deny | host/n1"]);
    assert_eq!(changes("init --name a.org"), ["init --name a.org | "]);
    assert_eq!(changes("authority rotate"), ["authority rotate | "]);
    assert_eq!(
        changes("authority finish --force"),
        ["authority finish --force | "]
    );
    for silent in ["user list", "token list", "pin", "authority status"] {
        assert_eq!(changes(silent), [""; 0], "{silent}");
    }
    let own = who(None);
    assert_eq!(who(Some("4294967295\n".into())), own, "a service");
    assert_eq!(
        who(Some("4711\n".into())),
        format!("{own} (login: user 4711)")
    );
}
