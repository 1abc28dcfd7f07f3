//! File of a model learned from a capture: versioned JSON, described in docs/traffic.md.

use netstage_core::traffic::application::{Application, ApplicationError, CaptureModel};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Format version. Version 1 is read without its fit, which compared a model with its own capture.
pub const FORMAT: u32 = 2;

/// Maximum size of a model file in bytes.
pub const MAX_MODEL_BYTES: u64 = 64 << 20;

/// Model file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Format version.
    pub format: u32,
    /// Name of the capture.
    pub capture: String,
    /// Counts of the capture's packets and flows.
    pub read: CaptureCounts,
    /// Learned model.
    pub model: Arc<CaptureModel>,
    /// Goodness of fit, per quantity.
    pub fit: Vec<GoodnessOfFit>,
}

/// Counts of a capture's packets and flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureCounts {
    /// Packets in the capture.
    pub packets: u64,
    /// Packets used for the model.
    pub used: u64,
    /// Packets of other flows or protocols.
    pub other: u64,
    /// Packets that could not be decoded.
    pub broken: u64,
    /// Flows or connections used for the model.
    pub flows: u64,
    /// Messages whose size was raised or lowered to the limits of a model.
    pub clamped: u64,
    /// Whether all messages were stored, so that a replay is complete.
    pub complete: bool,
}

/// A quantity in the capture, and its prediction by models of other parts of the capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoodnessOfFit {
    /// Name: `request`, `response`, `think`, `server`, `turns`, `connection`, `starts`, `up.size`, `up.gap`, …
    pub quantity: String,
    /// Unit of the mean.
    pub unit: String,
    /// Samples in the capture.
    pub samples: u64,
    /// Mean in the capture.
    pub mean: f64,
    /// Coefficient of variation in the capture.
    pub variation: f64,
    /// Correlation of consecutive samples in the capture. Drawn samples are uncorrelated.
    pub autocorrelation: f64,
    /// Comparison with parts that were held out.
    pub held_out: HeldOutFit,
}

/// Comparison of each part of a capture with the model of the other parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum HeldOutFit {
    /// The part with the largest distance, relative to its limit.
    Tested {
        /// Number of the part, from 1.
        part: u32,
        /// Number of parts.
        parts: u32,
        /// Samples in the part.
        samples: u64,
        /// Samples in the other parts.
        fitted: u64,
        /// Maximum distance between the distribution function of the part and of the model of the other parts
        /// (Kolmogorov–Smirnov).
        distance: f64,
        /// Distance that the largest of all parts exceeds with a probability of at most 1 %, if all samples are
        /// independent and have one distribution.
        limit: f64,
    },
    /// Too few samples for a comparison.
    NotTested {
        /// Samples that the smallest part has, and that it needs.
        reason: String,
    },
}

impl HeldOutFit {
    /// Returns whether the capture contradicts the model.
    pub fn differs(&self) -> bool {
        matches!(self, HeldOutFit::Tested { distance, limit, .. } if distance > limit)
    }
}

/// Error of a text that is not a valid model file.
#[derive(Debug)]
pub enum ModelError {
    /// JSON syntax or structure is invalid.
    Malformed(serde_json::Error),
    /// Format version is not supported.
    Version(u64),
    /// Model has settings that cannot run.
    UnusableModel(ApplicationError),
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelError::Malformed(error) => write!(f, "not a model file: {error}"),
            ModelError::Version(version) => {
                write!(f, "the model file has format version {version}; supported: 1 to {FORMAT}")
            }
            ModelError::UnusableModel(error) => write!(f, "invalid model: {error}"),
        }
    }
}

impl std::error::Error for ModelError {}

/// Model file of format 1.
#[derive(Deserialize)]
struct ModelFile1 {
    capture: String,
    read: CaptureCounts,
    model: Arc<CaptureModel>,
}

impl From<ModelFile1> for ModelFile {
    fn from(file: ModelFile1) -> ModelFile {
        let ModelFile1 { capture, read, model } = file;
        ModelFile { format: FORMAT, capture, read, model, fit: Vec::new() }
    }
}

impl ModelFile {
    /// Parses and checks the text of a model file.
    pub fn from_json(text: &str) -> Result<ModelFile, ModelError> {
        #[derive(Deserialize)]
        struct Version {
            format: u64,
        }
        let Version { format } = serde_json::from_str(text).map_err(ModelError::Malformed)?;
        let file: ModelFile = match format {
            1 => serde_json::from_str::<ModelFile1>(text).map(ModelFile::from),
            2 => serde_json::from_str(text),
            _ => return Err(ModelError::Version(format)),
        }
        .map_err(ModelError::Malformed)?;
        let model = Application::Learned { model: Arc::clone(&file.model), replay: false };
        model.check(file.model.carriage).map_err(ModelError::UnusableModel)?;
        Ok(file)
    }

    /// Returns the text of the file.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a model file contains only numbers and text") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_format_1_are_read_without_their_fit() {
        let read = r#""read": {"packets": 9, "used": 9, "other": 0, "broken": 0, "flows": 1, "clamped": 0, "complete": true}"#;
        let model = r#""model": {"carriage": "datagram", "shape": {"one-way": {"up": {"size": [9], "gap": [9], "recorded": []}, "down": null}}}"#;
        let text = |format: u32, fit: &str| {
            format!(r#"{{"format": {format}, "capture": "x", {read}, {model}, "fit": [{fit}]}}"#)
        };
        let file = ModelFile::from_json(&text(1, r#"{"quantity": "up.size", "mean_drawn": 9.0}"#)).unwrap();
        assert_eq!(file, ModelFile::from_json(&text(2, "")).unwrap());
        let error = ModelFile::from_json(&text(3, "")).unwrap_err().to_string();
        assert_eq!(error, "the model file has format version 3; supported: 1 to 2");
    }
}
