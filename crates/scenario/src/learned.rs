//! File of a model learned from a capture: versioned JSON, described in docs/traffic.md.

use netstage_core::traffic::application::{Application, ApplicationError, CaptureModel};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Format version. Other versions are refused.
pub const FORMAT: u32 = 1;

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
    /// Goodness of fit of samples drawn from the model, per quantity.
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

/// Comparison of a quantity in the capture with a run drawn from the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoodnessOfFit {
    /// Name: `request`, `response`, `think`, `server`, `up.size`, `up.gap`, …
    pub quantity: String,
    /// Unit of the means.
    pub unit: String,
    /// Samples in the capture.
    pub samples: u64,
    /// Mean in the capture.
    pub mean: f64,
    /// Mean in the run drawn from the model.
    pub mean_drawn: f64,
    /// Coefficient of variation in the capture.
    pub variation: f64,
    /// Coefficient of variation in the run drawn from the model.
    pub variation_drawn: f64,
    /// Correlation of consecutive samples in the capture. Drawn samples are uncorrelated.
    pub autocorrelation: f64,
    /// Maximum distance between the two distribution functions (Kolmogorov–Smirnov).
    pub distance: f64,
    /// Distance exceeded with a probability of 1 % by two samples of the same distribution.
    pub distance_at_1_percent: f64,
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
                write!(f, "the model file has format version {version}; supported: {FORMAT}")
            }
            ModelError::UnusableModel(error) => write!(f, "invalid model: {error}"),
        }
    }
}

impl std::error::Error for ModelError {}

impl ModelFile {
    /// Parses and checks the text of a model file.
    pub fn from_json(text: &str) -> Result<ModelFile, ModelError> {
        #[derive(Deserialize)]
        struct Version {
            format: u64,
        }
        let Version { format } = serde_json::from_str(text).map_err(ModelError::Malformed)?;
        if format != u64::from(FORMAT) {
            return Err(ModelError::Version(format));
        }
        let file: ModelFile = serde_json::from_str(text).map_err(ModelError::Malformed)?;
        let model = Application::Learned { model: Arc::clone(&file.model), replay: false };
        model.check(file.model.carriage).map_err(ModelError::UnusableModel)?;
        Ok(file)
    }

    /// Returns the text of the file.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a model file contains only numbers and text") + "\n"
    }
}
