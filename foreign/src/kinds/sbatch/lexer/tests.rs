use super::*;

fn read(text: &str) -> Vec<String> {
    let commands = commands(text, Place::START).expect("is understood");
    let shown = commands.iter().map(|command| {
        let words: Vec<&str> = command.words.iter().map(|word| &*word.source).collect();
        format!("{} {:?}", words.join("|"), command.then)
    });
    shown.collect()
}

#[test]
fn a_script_is_taken_apart_into_commands() {
    let text = "A=1 B=\"x y\" # c\nnodes=( $( scontrol show hostnames $L ) )\nsource x && cd \\\n  /y; echo a | tee b\n\
                srun a \\\n  --b='c d' \"$X/${Y}\" > log 2>&1 &";
    assert_eq!(
        read(text),
        [
            "A=1|B=\"x y\" End",
            "nodes=( $( scontrol show hostnames $L ) ) End",
            "source|x And",
            "cd|/y End",
            "echo|a Pipe",
            "tee|b End",
            "srun|a|--b='c d'|\"$X/${Y}\" Background",
        ]
    );
}

#[test]
fn what_is_not_understood_has_its_place() {
    for (text, line, why) in [
        ("a\ncat <<EOF\nx\nEOF\n", 2, "here-document"),
        ("a\n\nf() { b; }", 3, "a function"),
        ("(a)", 1, "subshell"),
        ("a 'b\n", 1, "quote"),
        ("a \"b\n", 1, "quote"),
        ("a $(b", 1, "never ends"),
        ("A=(1 2\n", 1, "never ends"),
        ("&& a", 1, "operator"),
    ] {
        let (place, message) = commands(text, Place::START).unwrap_err();
        assert_eq!(place.line, line, "{text}: {message}");
        assert!(message.contains(why), "{text}: {message}");
    }
}

#[test]
fn a_word_behind_a_redirection_is_its_file_unless_it_is_a_stream() {
    for (text, words, files) in [
        ("a >& log b", "a|b", "log"),
        ("a >&log b", "a|b", "log"),
        ("a &> log b", "a|b", "log"),
        ("a &>> 1 b", "a|b", "1"),
        ("a >&1x b", "a|b", "1x"),
        ("a >& $L", "a", "$L"),
        ("a 2>&1 b", "a|b", "-"),
        ("a 2>& 1 b", "a|b", "-"),
        ("a >&- 2>&1- b", "a|b", "-|-"),
        ("a > log 2>&1;", "a", "log|-"),
    ] {
        let command = &commands(text, Place::START).unwrap()[0];
        let source = |word: &ShellWord| word.source.clone();
        let is: Vec<String> = command.words.iter().map(source).collect();
        assert_eq!(is.join("|"), words, "{text}");
        let files_are = command.redirects.iter();
        let is: Vec<String> = files_are
            .map(|one| one.file.as_ref().map_or("-".into(), source))
            .collect();
        assert_eq!(is.join("|"), files, "{text}");
    }
}

#[test]
fn assignments_are_known() {
    let first = |text| commands(text, Place::START).unwrap()[0].words[0].assignment();
    assert_eq!(
        first("A=b").map(|(name, appends, _)| (name, appends)),
        Some(("A".into(), false))
    );
    assert_eq!(
        first("A+=b").map(|(name, appends, _)| (name, appends)),
        Some(("A".into(), true))
    );
    assert_eq!(first("\"A=b\""), None);
    assert_eq!(first("--a=b"), None);
}
