CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, category TEXT, price REAL, stock INTEGER);
INSERT INTO products VALUES
  (1, 'lamp', 'home', 35.0, 4), (2, 'chair', 'home', 80.0, 0), (3, 'kettle', 'kitchen', 29.5, 12),
  (4, 'pan', 'kitchen', 45.0, 7), (5, 'rope', 'sport', 12.0, 30), (6, 'ball', 'sport', 18.0, 9);
CREATE TABLE orders (id INTEGER PRIMARY KEY, product INTEGER REFERENCES products (id), quantity INTEGER, day TEXT);
INSERT INTO orders VALUES
  (1, 3, 2, '2026-01-02'), (2, 1, 1, '2026-01-02'), (3, 5, 10, '2026-01-03'), (4, 3, 1, '2026-01-04'),
  (5, 6, 4, '2026-01-04'), (6, 4, 2, '2026-01-05');
