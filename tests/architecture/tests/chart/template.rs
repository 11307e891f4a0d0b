//! Renders what our templates say, and nothing more: a value, `toJson`, `with`, `if`, `if not`,
//! `range`, and a quoted text. It is not Helm, and refuses every other form. The chart's test asks
//! Helm itself too, where there is one.

use serde_json::Value;

enum Node {
    Text(String),
    /// A value that is a text, as it is.
    Plain(String),
    Json(String),
    Block(Block),
}

struct Block {
    when: When,
    path: String,
    body: Vec<Node>,
}

enum When {
    If,
    IfNot,
    With,
    Range,
}

/// The text with the values in it, or the first form that is not known. The root has `Values` and
/// `Release`.
pub(crate) fn render(template: &str, root: &Value) -> Result<String, String> {
    let mut rest = template;
    let mut trim = false;
    let (nodes, closed) = parse(&mut rest, &mut trim)?;
    if closed {
        return Err("an end without a beginning".into());
    }
    let mut out = String::new();
    write(&nodes, root, root, &mut out)?;
    Ok(out)
}

/// Reads up to the end of the block. Returns whether there was one. `{{-` takes the white space before
/// it away, and `-}}` what is after it.
fn parse(rest: &mut &str, trim: &mut bool) -> Result<(Vec<Node>, bool), String> {
    let mut nodes = Vec::new();
    loop {
        let here = *rest;
        let (text, action) = match here.split_once("{{") {
            Some((text, action)) => (text, Some(action)),
            None => (here, None),
        };
        let text = if *trim { text.trim_start() } else { text };
        let left = action.is_some_and(|action| action.starts_with("- "));
        nodes.push(Node::Text(
            if left { text.trim_end() } else { text }.to_owned(),
        ));
        let Some(action) = action else {
            return Ok((nodes, false));
        };
        let (inner, after) = action
            .split_once("}}")
            .ok_or_else(|| format!("no }}}} after {action:.40}"))?;
        *rest = after;
        *trim = inner.ends_with(" -");
        let inner = inner.strip_prefix("- ").unwrap_or(inner);
        let inner = inner.strip_suffix(" -").unwrap_or(inner).trim();
        let words: Vec<&str> = inner.split_whitespace().collect();
        let (when, path) = match words[..] {
            ["end"] => return Ok((nodes, true)),
            ["if", "not", path] => (When::IfNot, path),
            ["if", path] => (When::If, path),
            ["with", path] => (When::With, path),
            ["range", path] => (When::Range, path),
            ["toJson", path] => {
                nodes.push(Node::Json(path.to_owned()));
                continue;
            }
            [quoted] if quoted.len() > 1 && quoted.starts_with('"') && quoted.ends_with('"') => {
                nodes.push(Node::Text(quoted[1..quoted.len() - 1].to_owned()));
                continue;
            }
            [path] if path.starts_with('.') => {
                nodes.push(Node::Plain(path.to_owned()));
                continue;
            }
            _ => return Err(format!("{{{{ {inner} }}}} is not known here")),
        };
        let (body, closed) = parse(rest, trim)?;
        if !closed {
            return Err(format!("no end of {{{{ {inner} }}}}"));
        }
        let path = path.to_owned();
        nodes.push(Node::Block(Block { when, path, body }));
    }
}

fn write(nodes: &[Node], root: &Value, dot: &Value, out: &mut String) -> Result<(), String> {
    for node in nodes {
        match node {
            Node::Text(text) => out.push_str(text),
            Node::Plain(path) => {
                let value = at(path, root, dot)?.as_str();
                out.push_str(value.ok_or_else(|| format!("{path} is no text"))?);
            }
            Node::Json(path) => out.push_str(&at(path, root, dot)?.to_string()),
            Node::Block(block) => {
                let value = at(&block.path, root, dot)?;
                let dots: Vec<&Value> = match block.when {
                    When::If if is_true(value) => vec![dot],
                    When::IfNot if !is_true(value) => vec![dot],
                    When::With if is_true(value) => vec![value],
                    When::Range => value.as_array().into_iter().flatten().collect(),
                    When::If | When::IfNot | When::With => Vec::new(),
                };
                for dot in dots {
                    write(&block.body, root, dot, out)?;
                }
            }
        }
    }
    Ok(())
}

/// A value by its path. Helm takes a name that is not there for nothing, and a misspelt one with it:
/// here it is an error.
fn at<'v>(path: &str, root: &'v Value, dot: &'v Value) -> Result<&'v Value, String> {
    if path == "." {
        return Ok(dot);
    }
    // Within a block `$` is the root, as it is outside.
    let path = path.strip_prefix('$').unwrap_or(path);
    let pointer = path.replace('.', "/");
    root.pointer(&pointer)
        .ok_or_else(|| format!("there is no value {path}"))
}

/// What is empty is not true.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(it) => *it,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}
