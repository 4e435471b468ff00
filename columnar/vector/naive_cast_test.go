package vector_test

import (
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/schema"
	"scribe/columnar/value"
)

func (n *naive) cast(v any, from, to *schema.Type) any {
	if from.Equal(to) {
		return v
	}
	switch {
	case to.Kind == schema.String:
		return n.print(v, from)
	case from.Kind == schema.String:
		return n.parse(v.(string), to)
	case to.Kind == schema.Bool:
		return rat(v, 0).Sign() != 0
	}
	switch v := v.(type) {
	case bool:
		switch to.Kind {
		case schema.Int32:
			return int32(boolInt(v))
		case schema.Int64:
			return int64(boolInt(v))
		default:
			return uint64(boolInt(v))
		}
	case arrow.Date32:
		return arrow.Timestamp(int64(v) * value.Day)
	case arrow.Timestamp:
		return arrow.Date32(civilInstant(v).Unix()/86400 + int64(boolInt(civilInstant(v).Unix()%86400 < 0))*-1)
	case float64:
		if to.Kind == schema.Decimal {
			return n.parse(strconv.FormatFloat(v, 'g', 15, 64), to)
		}
		v = math.RoundToEven(v)
		if v != v || math.IsInf(v, 0) {
			return n.fail()
		}
		return n.parse(strconv.FormatFloat(v, 'f', 0, 64), to)
	}
	if to.Kind == schema.Float64 {
		f, _ := rat(v, from.Scale).Float64()
		return f
	}
	return n.exact(rat(v, from.Scale), to)
}

func (n *naive) print(v any, t *schema.Type) any {
	switch v := v.(type) {
	case bool:
		return strconv.FormatBool(v)
	case int32:
		return strconv.Itoa(int(v))
	case int64:
		return strconv.FormatInt(v, 10)
	case uint64:
		return strconv.FormatUint(v, 10)
	case float64:
		return string(value.AppendFloat(nil, v))
	case decimal128.Num:
		return rat(v, t.Scale).FloatString(int(t.Scale))
	case []byte:
		if !utf8.Valid(v) {
			return n.fail()
		}
		return string(v)
	case arrow.Date32:
		return string(value.AppendDate(nil, v))
	case arrow.Timestamp:
		return string(value.AppendTimestamp(nil, v))
	case arrow.MonthDayNanoInterval:
		return string(value.AppendInterval(nil, v))
	}
	panic("no text")
}

func (n *naive) parse(s string, t *schema.Type) any {
	var v any
	var err error
	switch t.Kind {
	case schema.Bool:
		v, err = value.ParseBool(s)
	case schema.Int32:
		var i int64
		i, err = value.ParseInt(s, 32)
		v = int32(i)
	case schema.Int64:
		v, err = value.ParseInt(s, 64)
	case schema.Uint64:
		v, err = value.ParseUint(s)
	case schema.Float64:
		v, err = value.ParseFloat(s)
	case schema.Decimal:
		v, err = value.ParseDecimal(s, t.Precision, t.Scale)
	case schema.Binary:
		v, err = value.ParseBinary(s)
	case schema.Date:
		v, err = value.ParseDate(s)
	case schema.Timestamp:
		v, err = value.ParseTimestamp(s)
	case schema.Interval:
		v, err = value.ParseInterval(s)
	default:
		panic("nothing is read as " + t.String())
	}
	if err != nil {
		return n.fail()
	}
	return v
}
