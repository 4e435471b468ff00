package admission

import (
	"math"
	"time"

	"scribe/internal/base/config"
)

// ControllerConfig sets the target and the bounds of a controller.
type ControllerConfig struct {
	// Target is the utilisation to keep to, above 0 and at most 1. With 1, the length stays at Most: a host can't be busier.
	Target float64 `yaml:"utilisation" default:"0.9" min:">0" max:"1"`
	// Least and Most bound the length.
	Least int `yaml:"queue_least" default:"64" min:"1" max:"1048576"`
	Most  int `yaml:"queue_most" default:"4096" min:"Least" max:"1048576"`
}

// Validate reports every violation.
func (c *ControllerConfig) Validate() error {
	return config.Check("admission", c, nil).Err()
}

// Gains of the controller, by which the output, a position between the least length (0) and the most (1), follows the error. P is
// I times smoothing, to compensate the delay of the smoothing. With the steepest response of a host to its queue, a factor of 5
// from output to utilisation, the loop then has a quarter of the gain at which it would oscillate.
const (
	gainP = 0.06
	gainI = 0.3 // a second
	gainD = 0.002
	// smoothing is the time over which utilisation is averaged: samples are short, and CPU time is accounted in ticks.
	smoothing = 200 * time.Millisecond
	// longestStep bounds the effect of one sample: after a pause it says little about the present.
	longestStep = 200 * time.Millisecond
	// minDistance is the least distance to the target that counts as a whole error.
	minDistance = 0.2
)

// LengthController resizes a queue. It is the velocity form of a PID controller: each step changes the output by
//
//	P (e0 - e1) + I e0 dt + D (e0 - 2 e1 + e2) / dt
//
// e0 to e2 are the last three errors, the newest first. The output is clamped. No integral can wind up while the output is at an
// end, so after an hour of overload the controller responds to the first idle second. The error is relative to the distance from
// the target to the end on its side: with a target of 0.9 a host can be only 0.1 too busy, but 0.9 too idle, and the response to
// full load must not be nine times as slow. From one end to the other the output takes 7 seconds of overload, and 3 idle seconds
// back.
//
// The output maps to the length geometrically, since the relative change of a queue's length matters.
//
// It is not safe for concurrent use.
type LengthController struct {
	cfg    ControllerConfig
	output float64 // 0 to 1
	smooth float64 // utilisation
	e1, e2 float64
	begun  bool
}

// NewController returns a controller with the greatest queue length. cfg must be valid.
func NewController(cfg ControllerConfig) *LengthController {
	return &LengthController{cfg: cfg, output: 1}
}

// AdjustLength takes the utilisation, 0 to 1, during the time dt since the previous step, and returns the length.
func (c *LengthController) AdjustLength(utilisation float64, dt time.Duration) int {
	if math.IsNaN(utilisation) || dt <= 0 {
		return c.Length()
	}
	utilisation = min(max(utilisation, 0), 1)
	if !c.begun {
		c.begun, c.smooth = true, utilisation
		c.e1 = c.relativeError(utilisation)
		c.e2 = c.e1
	}
	t := min(dt, longestStep).Seconds()
	c.smooth += (utilisation - c.smooth) * (1 - math.Exp(-dt.Seconds()/smoothing.Seconds()))
	e := c.relativeError(c.smooth)
	c.output += gainP*(e-c.e1) + gainI*e*t + gainD*(e-2*c.e1+c.e2)/t
	c.output = min(max(c.output, 0), 1)
	c.e1, c.e2 = e, c.e1
	return c.Length()
}

// relativeError returns how far a utilisation is below the target, -1 to 1.
func (c *LengthController) relativeError(utilisation float64) float64 {
	distance := c.cfg.Target
	if utilisation > c.cfg.Target {
		distance = 1 - c.cfg.Target
	}
	return (c.cfg.Target - utilisation) / max(distance, minDistance)
}

// Length returns the result of the last step.
func (c *LengthController) Length() int {
	least, most := float64(c.cfg.Least), float64(c.cfg.Most)
	return int(math.Round(least * math.Pow(most/least, c.output)))
}

// Utilisation returns the smoothed utilisation.
func (c *LengthController) Utilisation() float64 { return c.smooth }
