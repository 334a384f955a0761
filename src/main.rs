//! The front: `inspect`.

use std::process::ExitCode;

use inspect_checkpoint::app;

fn main() -> ExitCode {
    ExitCode::from(app::main(std::env::args_os()).0)
}
