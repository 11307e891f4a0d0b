use super::*;

fn parse(text: &str) -> Result<Node, (Place, String)> {
    parse_all(text).map(|mut documents| documents.remove(0))
}

fn at(line: u64, column: u64, value: Value) -> Node {
    Node {
        place: Place { line, column },
        value,
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
        (inner[0].key_place, &inner[0].node),
        (Place { line: 5, column: 5 }, &at(5, 8, Value::Bool(true)))
    );
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
    assert_eq!(entries[1].2, at(2, 4, Value::Whole(7)));
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
