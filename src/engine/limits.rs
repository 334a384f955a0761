//! What an engine may take where the user does not say: enough for any model that this machine can run, and an end.

use std::time::Duration;

/// Longest time: a model that loops for ever ends in an error while somebody still waits for it.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// Most memory: what this machine, or the control group that holds this process, has; `None` where neither says.
#[must_use]
pub fn default_memory_bytes() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok();
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let machine = machine.as_deref().and_then(machine_bytes);
    let group = group.and_then(|text| text.trim().parse().ok());
    [machine, group].into_iter().flatten().min()
}

/// Memory and swap, as `/proc/meminfo` says in KiB.
fn machine_bytes(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    let swap = kib("SwapTotal:").unwrap_or(0);
    kib("MemTotal:")?.checked_add(swap)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_swap() {
        let text = "MemTotal:        2048 kB\nMemFree:  1 kB\nSwapTotal:     1024 kB\n";
        assert_eq!(machine_bytes(text), Some(3 << 20));
        assert_eq!(machine_bytes("MemTotal: 2048 kB\n"), Some(2 << 20));
        assert_eq!(machine_bytes("MemTotal: many\n"), None);
        assert_eq!(machine_bytes(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_says() {
        assert!(default_memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
