//! The operator's file of queues (`--queues FILE`): YAML becomes the tree of `core::fleet::queues`, which checks it. Each error
//! has the line of its queue and the field. `docs/queues.md` describes the file.

use std::{fs, path::Path};

use muster_core::{
    fleet::queues::{OTHERS, Queue, Queues, Wrong},
    id::label_error,
};
use serde::Deserialize;
use serde_saphyr::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    queues: Vec<Spanned<Said>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Said {
    name: String,
    quota: Option<u32>,
    borrowing_limit: Option<u32>,
    lending_limit: Option<u32>,
    max_priority: Option<i32>,
    weight: Option<u32>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default)]
    queues: Vec<Spanned<Said>>,
}

/// Reads and checks the file. The error has a line for each thing that is wrong.
pub fn read(path: &Path) -> Result<Queues, String> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|e| format!("--queues: read {shown}: {e}"))?;
    parse(&text).map_err(|wrong| {
        let lines: Vec<String> = wrong.iter().map(|one| format!("\n  {one}")).collect();
        format!("--queues: {shown} is wrong:{}", lines.concat())
    })
}

fn parse(text: &str) -> Result<Queues, Vec<String>> {
    let file: File = serde_saphyr::from_str(text).map_err(|e| vec![e.to_string()])?;
    let mut flat = Flat::default();
    flat.add(file.queues, None);
    let Flat {
        queues,
        lines,
        mut wrong,
    } = flat;
    if queues.is_empty() {
        wrong.push("queues: name at least one queue, or leave --queues out".into());
    }
    let names: Vec<String> = queues.iter().map(|queue| queue.name.clone()).collect();
    let checked = Queues::new(queues);
    let of_tree = |Wrong { queue, field, why }: Wrong| {
        let name = names.get(queue).map_or("", String::as_str);
        format!("line {}: queue {name}: {field}: {why}", lines[queue])
    };
    match checked {
        Ok(queues) if wrong.is_empty() => Ok(queues),
        Ok(_) => Err(wrong),
        Err(of_queues) => {
            wrong.extend(of_queues.into_iter().map(of_tree));
            Err(wrong)
        }
    }
}

/// The queues one after the other, each behind its parent.
#[derive(Default)]
struct Flat {
    queues: Vec<Queue>,
    lines: Vec<u64>,
    wrong: Vec<String>,
}

impl Flat {
    fn add(&mut self, all: Vec<Spanned<Said>>, parent: Option<usize>) {
        for one in all {
            let (line, said) = (one.referenced.line(), one.value);
            let mut note = |field: &str, why: String| {
                let name = &said.name;
                self.wrong
                    .push(format!("line {line}: queue {name}: {field}: {why}"));
            };
            if let Some(why) = label_error(&said.name) {
                note("name", why);
            }
            for namespace in said.namespaces.iter().filter(|name| *name != OTHERS) {
                if let Some(why) = label_error(namespace) {
                    note("namespaces", format!("{namespace:?} {why}"));
                }
            }
            let own = self.queues.len();
            self.queues.push(Queue {
                name: said.name,
                parent,
                quota: said.quota,
                borrowing_limit: said.borrowing_limit,
                lending_limit: said.lending_limit,
                namespaces: said.namespaces.into_iter().collect(),
                max_priority: said.max_priority,
                weight: said.weight,
            });
            self.lines.push(line);
            self.add(said.queues, Some(own));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the documentation is right.
    #[test]
    fn the_example_is_read() {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/queues.yaml");
        let queues = read(&example).unwrap();
        assert!(!queues.is_empty());
        let page = include_str!("../../docs/queues.md");
        let text = fs::read_to_string(example).unwrap();
        assert!(page.contains(text.trim()), "docs/queues.md shows another");
    }

    #[test]
    fn all_that_is_wrong_is_said_with_its_line() {
        let text = "queues:
- name: all
  queues:
  - name: Vision
    quota: 4
    namespaces: [a]
  - name: speech
    namespaces: [a, 'B C']
  borrowingLimit: 3
";
        let wrong = parse(text).err().unwrap();
        let said = wrong.join("\n");
        for part in [
            "line 4: queue Vision: name: ",
            "line 7: queue speech: namespaces: \"B C\" ",
            "line 7: queue speech: quota: say how many GPUs it has",
            "line 2: queue all: borrowingLimit: a queue at the top borrows and lends nothing",
        ] {
            assert!(said.contains(part), "{part} is missing:\n{said}");
        }
        assert_eq!(wrong.len(), 4, "{said}");
        let unknown = parse("queues:\n- name: a\n  quotas: 4\n").err().unwrap();
        assert!(unknown[0].contains("quotas"), "{unknown:?}");
        assert!(unknown[0].contains("line 3"), "{unknown:?}");
        assert_eq!(
            parse("queues: []").err().unwrap(),
            ["queues: name at least one queue, or leave --queues out"]
        );
        assert!(
            read(Path::new("/no/such/file"))
                .err()
                .unwrap()
                .starts_with("--queues: read /no/such/file: ")
        );
    }
}
