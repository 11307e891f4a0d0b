use super::*;

fn parse(text: &str) -> Result<Node, (Place, String)> {
    parse_all(text).map(|mut documents| documents.remove(0))
}

fn at(line: u64, column: u64, value: Value) -> Node {
    let written = match &value {
        Value::Whole(number) => Some(number.to_string().into()),
        _ => None,
    };
    Node {
        place: Place { line, column },
        value,
        written,
    }
}

fn entries(node: Node) -> Vec<(String, Place, Node)> {
    let Value::Object(entries) = node.value else {
        panic!("{node:?} is not an object")
    };
    entries
        .into_iter()
        .map(|entry| (entry.key, entry.key_place, entry.node))
        .collect()
}

#[test]
fn every_value_knows_its_place() {
    let tree = parse("a: 1\nb:\n  - x\n  - \"10\"\nc: {d: yes, e: ~}\n").unwrap();
    let entries = entries(tree);
    assert_eq!(entries[0].2, at(1, 4, Value::Whole(1)));
    let list = Value::List(vec![
        at(3, 5, Value::Text("x".into())),
        at(4, 5, Value::Text("10".into())),
    ]);
    assert_eq!(entries[1].1, Place { line: 2, column: 1 });
    assert_eq!(entries[1].2.value, list);
    let Value::Object(inner) = &entries[2].2.value else {
        panic!("not an object")
    };
    assert_eq!(
        (inner[0].key_place, &inner[0].node.value),
        (Place { line: 5, column: 5 }, &Value::Bool(true))
    );
    assert_eq!(inner[0].node.place, Place { line: 5, column: 8 });
    assert_eq!(inner[1].node.value, Value::Null);
}

#[test]
fn json_is_read_as_well() {
    let entries = entries(parse("{\"a\": [1, 2],\n\t\"b\": \"x\"}").unwrap());
    assert_eq!(
        entries[1],
        (
            "b".into(),
            Place { line: 2, column: 2 },
            at(2, 7, Value::Text("x".into()))
        )
    );
}

#[test]
fn aliases_stand_where_they_are_used() {
    let entries = entries(parse("a: &x 7\nb: *x\n").unwrap());
    let alias = Node::made(Place { line: 2, column: 4 }, Value::Whole(7));
    assert_eq!(entries[1].2, alias, "it is not written here");
}

/// The advice quotes what stands in the file.
#[test]
fn numbers_and_booleans_know_how_they_are_written() {
    for (written, text) in [
        ("1.10", "is the number 1.10, must be a text; write \"1.10\""),
        ("0755", "is the number 0755, must be a text; write \"0755\""),
        (
            "12345678901234567890",
            "is the number 12345678901234567890, must be a text; write \"12345678901234567890\"",
        ),
        ("1e-3", "is the number 1e-3, must be a text; write \"1e-3\""),
        ("0x1F", "is the number 0x1F, must be a text; write \"0x1F\""),
        (
            "1_000",
            "is the number 1_000, must be a text; write \"1_000\"",
        ),
        ("+7", "is the number +7, must be a text; write \"+7\""),
        (
            "no",
            "is no, which YAML reads as false, must be a text; write \"no\"",
        ),
        (
            "On",
            "is On, which YAML reads as true, must be a text; write \"On\"",
        ),
        (
            "true",
            "is the boolean true, must be a text; write \"true\"",
        ),
        ("3", "is the number 3, must be a text; write \"3\""),
    ] {
        for file in [
            format!("a: {written}"),
            format!("a: {written} # why"),
            format!("{{x: 'ä ö', a: {written}, b: c}}"),
            format!("[{{a: {written}}}]"),
            format!("x: 'ä ö'\r\na:\r\n  {written}\r\nb: c"),
        ] {
            let tree = parse(&file).unwrap();
            let found = match &tree.value {
                Value::List(items) => items[0].entry("a"),
                _ => tree.entry("a"),
            };
            assert_eq!(found.unwrap().node.must_be_text(), text, "{file}");
        }
    }
    for text in [
        "a: 12:30:00",
        "a: 2026-11-26",
        "a: 1.2.3",
        "a: \"no\"",
        "a: 1_0_",
    ] {
        let tree = parse(text).unwrap();
        assert!(tree.text_at(&["a"]).is_some(), "{text} is a text");
    }
    let whole = |text: &str| {
        parse(text)
            .unwrap()
            .entry("a")
            .unwrap()
            .node
            .must_be_whole()
    };
    assert_eq!(
        whole("a: 010"),
        "is the number 010, must be a whole number without a zero before it; write 10, or 8 if it is meant as octal"
    );
    assert_eq!(
        whole("a: 99999999999999999999"),
        "is the number 99999999999999999999, which is too large"
    );
    assert_eq!(
        whole("a: 2.50"),
        "is the number 2.50, must be a whole number"
    );
    assert_eq!(
        whole("a: '2'"),
        "is the text \"2\", must be a whole number; leave out the quotes"
    );
}

#[test]
fn a_hostile_file_is_refused_quickly() {
    let deep = "[".repeat(100_000);
    assert!(parse(&deep).is_err());
    let laughs = format!(
        "a: &a [x,x,x,x,x,x,x,x,x]\n{}",
        ('b'..='k').fold(String::new(), |text, c| {
            let before = (c as u8 - 1) as char;
            text + &format!(
                "{c}: &{c} [*{before},*{before},*{before},*{before},*{before},*{before},*{before},*{before},*{before}]\n"
            )
        })
    );
    assert_eq!(
        parse(&laughs).unwrap_err().1,
        "is too large or too deeply nested for a job"
    );
}

#[test]
fn each_document_knows_its_lines_and_empty_ones_are_left_out() {
    let documents = parse_all("---\na: 1\n---\n# nothing\n---\nb: &x 2\n---\nc: 3\n---\n").unwrap();
    let keys: Vec<(String, u64)> = documents
        .into_iter()
        .map(|node| {
            let entry = entries(node).remove(0);
            (entry.0, entry.1.line)
        })
        .collect();
    assert_eq!(keys, [("a".into(), 2), ("b".into(), 6), ("c".into(), 8)]);
    assert!(parse_all("").unwrap().is_empty());
    assert!(
        parse_all("a: &x 1\n---\nb: *x\n").is_err(),
        "an anchor ends with its document"
    );
    assert_eq!(
        parse_all(&"---\na: 1\n".repeat(DOCUMENTS_MAX + 1))
            .unwrap_err()
            .1,
        "is too large or too deeply nested for a job"
    );
}

#[test]
fn nodes_are_compared_without_their_places() {
    let both = |one, two| parse(one).unwrap().says_the_same(&parse(two).unwrap());
    assert!(both("{a: 1, b: [x]}", "b:\n- x\na: 1\n"));
    assert!(!both("{a: 1}", "{a: 1, b: 2}"));
    assert!(!both("a: [1, 2]", "a: [2, 1]"));
    assert!(!both("a: 1", "a: \"1\""));
}

/// A name that is set twice is one mistake among others.
#[test]
fn names_that_are_set_twice_are_all_told() {
    let (trees, twice) =
        parse_file("a: 1\nb: {c: 1, c: 2, c: 3}\na: 2\n---\nd: [{e: 1, e: 1}]\n").unwrap();
    let told: Vec<(u64, u64, &str)> = twice
        .iter()
        .map(|(place, message)| (place.line, place.column, &**message))
        .collect();
    assert_eq!(
        told,
        [
            (2, 11, "\"c\" is set twice in the same mapping"),
            (2, 17, "\"c\" is set twice in the same mapping"),
            (3, 1, "\"a\" is set twice in the same mapping"),
            (5, 12, "\"e\" is set twice in the same mapping"),
        ]
    );
    let a = &trees[0].entry("a").unwrap().node.value;
    assert_eq!((a, entries(trees[0].clone()).len()), (&Value::Whole(1), 2));
    assert_eq!(
        parse("a: 1\na: 2\n").unwrap_err().0,
        Place { line: 2, column: 1 }
    );
}
