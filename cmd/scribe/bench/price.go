package bench

// Prices of S3 Standard in us-east-1 in dollars, by https://aws.amazon.com/s3/pricing: assumptions, which do not include what transfers
// between zones or out of the region cost. DELETE is free.
const (
	pricePut        = 0.005 / 1000  // PUT, POST and LIST
	priceGet        = 0.0004 / 1000 // GET and HEAD
	priceGBForMonth = 0.023         // the first 50 TB
)

// dollars returns the price of the requests.
func (s *StoreRequests) dollars() float64 {
	return float64(s.Put+s.Post+s.List)*pricePut + float64(s.Get+s.Head)*priceGet
}
