//! `environment.json`: the data that may differ between two executions of the same study.

use serde::{Deserialize, Serialize};
use std::fs;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Host and time of a study.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Host name.
    pub host: String,
    /// Kernel name and version.
    pub kernel: String,
    /// Processor model.
    pub cpu: String,
    /// Logical CPU cores.
    pub cores: usize,
    /// Worker threads.
    pub jobs: usize,
    /// Start time of the study, or of its last part after a resume (UTC, RFC 3339).
    pub started: String,
    /// Wall-clock time from the start to the end.
    pub wall_seconds: f64,
    /// CPU time of the process over that time.
    pub cpu_seconds: f64,
    /// Runs finished over that time.
    pub runs: usize,
    /// Runs reused from earlier parts.
    pub resumed_runs: usize,
}

/// Timer of a study.
pub struct StudyTimer {
    started: String,
    wall: Instant,
    cpu: f64,
}

impl StudyTimer {
    /// Starts the timer.
    pub fn start() -> StudyTimer {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        StudyTimer { started: rfc3339(now), wall: Instant::now(), cpu: cpu_seconds() }
    }

    /// Returns the environment with the time since the start.
    pub fn stop(&self, jobs: usize, runs: usize, resumed_runs: usize) -> Environment {
        let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let cpus = line("/proc/cpuinfo");
        let model = cpus.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
        Environment {
            host: line("/proc/sys/kernel/hostname"),
            kernel: format!("{} {}", line("/proc/sys/kernel/ostype"), line("/proc/sys/kernel/osrelease")),
            cpu: model.map(|(_, name)| name.trim().to_owned()).unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            jobs,
            started: self.started.clone(),
            wall_seconds: self.wall.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds() - self.cpu,
            runs,
            resumed_runs,
        }
    }
}

/// Returns the CPU time of this process, from the kernel's count of ticks (100 per second).
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The command name, in parentheses, may contain spaces and parentheses.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|f| f.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

/// Formats seconds since 1970 as a UTC date (civil-from-days over 400-year eras).
fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_735_689_599), "2024-12-31T23:59:59Z");
    }

    #[test]
    fn the_timer_measures_wall_and_cpu_time() {
        let watch = StudyTimer::start();
        let mut x = 1u64;
        while watch.wall.elapsed().as_millis() < 60 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        let environment = watch.stop(1, 1, 0);
        assert!(environment.wall_seconds >= 0.06 && environment.cpu_seconds > 0.0);
    }
}
