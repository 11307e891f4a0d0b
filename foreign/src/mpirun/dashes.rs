//! Writes the options of mpirun as Open MPI 5 wants them: with two dashes, where they have several letters.

use super::{STARTERS_MAX, options};
use crate::{
    launch::{self, Launch},
    pod::Pod,
    tree::{Field, Place},
    verdict::Verdicts,
    words::Word,
};

/// The programs of Open MPI that have these options.
const OPEN_MPI: [&str; 4] = ["mpirun", "mpiexec", "orterun", "prterun"];
/// Writes options as Open MPI 5 wants them, where a launcher's command has them otherwise. Those of hydra stay as
/// they are.
pub(crate) fn two_dashes(pod: &Pod<'_>, launch: &mut Launch, log: &mut Verdicts) {
    let is_intel = |name: &String| name.starts_with("I_MPI_");
    if launch.broken
        || pod
            .variables
            .list
            .iter()
            .any(|(var, _)| is_intel(&var.name))
    {
        return;
    }
    let mut said: Vec<(usize, String)> = Vec::new();
    for (at, word) in pod.words.iter().enumerate() {
        let name = launch::stem(&word.text);
        if word.text.contains(char::is_whitespace) {
            let (text, rewritten) = two_dashes_in(&word.text, |name| OPEN_MPI.contains(&name));
            if !rewritten.is_empty() {
                said.push((at, text));
                say_rewritten(&word.field(), &rewritten.join(", "), log);
            }
        } else if OPEN_MPI.contains(&name) {
            let options: Vec<&Word> = pod.words[at + 1..].iter().collect();
            let asked = options::read(&options);
            let one_dash = asked.one_dash.iter().filter(|_| !asked.is_hydra);
            for option in one_dash {
                let word = options[*option];
                said.push((at + 1 + option, format!("-{}", word.text)));
                say_rewritten(&word.field(), &word.text, log);
            }
            break;
        }
    }
    let words: Vec<&mut String> = launch.command.iter_mut().chain(&mut launch.args).collect();
    // Words may have come before those of the file.
    let more = words.len().saturating_sub(pod.words.len());
    for (at, word) in words.into_iter().enumerate().skip(more) {
        if let Some((_, text)) = said.iter().find(|(said, _)| said + more == at) {
            text.clone_into(word);
        }
    }
}

fn say_rewritten(at: &Field<'_>, options: &str, log: &mut Verdicts) {
    log.note(
        at,
        format!("{options} gets a second dash, which Open MPI 5 wants and older ones take as well"),
    );
}

/// The text of a shell with two dashes where Open MPI 5 wants them, and what was rewritten.
fn two_dashes_in(text: &str, is_starter: impl Fn(&str) -> bool) -> (String, Vec<String>) {
    let mut out = String::with_capacity(text.len() + 8);
    let mut rewritten = Vec::new();
    // The words up to the next white space, with what separates commands kept in them.
    let pieces: Vec<&str> = text.split_inclusive(char::is_whitespace).collect();
    let words: Vec<Word> = pieces
        .iter()
        .map(|piece| Word {
            text: piece.trim_end().trim_end_matches(';').to_owned(),
            place: Place::START,
            path: String::new(),
            on_node: None,
            by_shell: false,
        })
        .filter(|word| !word.text.is_empty())
        .collect();
    let mut marked = vec![false; words.len()];
    let starters = (0..words.len()).filter(|at| {
        let name = words[*at].text.trim_start_matches(['(', '"', '\'', '`']);
        is_starter(launch::stem(name))
    });
    for at in starters.take(STARTERS_MAX) {
        let places: Vec<usize> = (at + 1..words.len())
            .filter(|i| words[*i].text != "\\")
            .collect();
        let after: Vec<&Word> = places.iter().map(|i| &words[*i]).collect();
        let asked = options::read(&after);
        for i in asked.one_dash.into_iter().filter(|_| !asked.is_hydra) {
            marked[places[i]] = true;
        }
    }
    let mut word = 0;
    for piece in pieces {
        let is_word = !piece.trim_end().trim_end_matches(';').is_empty();
        if is_word && marked[word] {
            out.push('-');
            rewritten.push(words[word].text.clone());
        }
        out.push_str(piece);
        word += usize::from(is_word);
    }
    (out, rewritten)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_shell_keeps_everything_else() {
        let text = |text: &str| two_dashes_in(text, |name| name == "mpirun");
        let (out, said) =
            text("cd /x && mpirun -np 2 \\\n  -bind-to none a -bind-to b; echo -bind-to");
        assert_eq!(
            out,
            "cd /x && mpirun -np 2 \\\n  --bind-to none a -bind-to b; echo -bind-to"
        );
        assert_eq!(said, ["-bind-to"]);
        assert_eq!(text("python a.py -bind-to none").1, Vec::<String>::new());
    }
}
