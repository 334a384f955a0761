//! The front: `inspect`.

use std::process::ExitCode;

use inspect_checkpoint::app;
use inspect_checkpoint::memory::LargePages;

#[global_allocator]
static MEMORY: LargePages = LargePages;

fn main() -> ExitCode {
    ExitCode::from(app::main(std::env::args_os()).0)
}
