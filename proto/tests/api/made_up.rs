//! Small .proto files that exist only in a test.

use std::path::Path;

use prost_types::FileDescriptorSet;
use protox::{
    Compiler, Error,
    file::{File, FileResolver},
};

/// The one file that is there.
struct Only(String);

impl FileResolver for Only {
    fn resolve_path(&self, path: &Path) -> Option<String> {
        path.to_str().map(str::to_owned)
    }

    fn open_file(&self, name: &str) -> Result<File, Error> {
        File::from_source(name, &self.0)
    }
}

/// Compiles these declarations, in a package `p`.
pub(crate) fn compile(declarations: &str) -> FileDescriptorSet {
    let text = format!("syntax = \"proto3\";\npackage p;\n{declarations}");
    let mut compiler = Compiler::with_file_resolver(Only(text));
    compiler.include_source_info(true);
    compiler.open_file("made_up.proto").unwrap();
    compiler.file_descriptor_set()
}
