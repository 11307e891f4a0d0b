//! Puts the commit into the runner's build, exactly as into the other programs.

#[path = "../../runtime/build.rs"]
mod stamp;

fn main() {
    stamp::main();
}
